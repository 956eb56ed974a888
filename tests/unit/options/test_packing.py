from dataclasses import replace

import pytest
from fabricated_facts import some_facts
from small_workloads import gpt

from advisor.errors import UsageError
from advisor.options.packing import OPTION


def test_the_value_carries_the_fill():
    assert list(OPTION.values(some_facts(mean_sequence_fill=0.3))) == ["off", "fill-0.3"]
    assert list(OPTION.values(some_facts(mean_sequence_fill=1.0))) == ["off"]
    assert OPTION.why_not(some_facts()) == "the batch holds no token ids"
    tokens = some_facts(replace(some_facts().trace, tokens_per_sample=64))
    assert "--sequence-lengths" in (OPTION.why_not(tokens) or "")


def test_a_row_holds_more_samples_and_nothing_else_changes():
    workload = gpt()
    packed = OPTION.apply(workload, "fill-0.25")
    assert packed.samples_per_batch_item == 4
    assert packed.make_batch is workload.make_batch


@pytest.mark.parametrize("value", ["fill-0", "fill-0.0", "fill-1.5", "fill-", "on"])
def test_refuses_a_share_that_is_none(value):
    with pytest.raises(UsageError):
        OPTION.apply(gpt(), value)


def test_the_snippet_packs():
    namespace: dict[str, object] = {}
    exec(OPTION.snippet("fill-0.3"), namespace)
    rows = namespace["pack"]([[1] * 3, [2] * 5, [3] * 7, [4] * 5], 10)
    assert [[len(sample) for sample in row] for row in rows] == [[7, 3], [5, 5]]
