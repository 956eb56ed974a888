from dataclasses import replace

import pytest
from fabricated_facts import WIDTH, some_facts, transformer_trace
from small_workloads import gpt, losses, mlp

from advisor.errors import UsageError
from advisor.options.loss import OPTION


def test_offered_for_logits_larger_than_features():
    assert list(OPTION.values(some_facts())) == ["as-written", "chunked"]
    small = some_facts(transformer_trace(vocabulary=WIDTH))
    assert list(OPTION.values(small)) == ["as-written"]
    assert "no larger" in (OPTION.why_not(small) or "")


def test_not_offered_for_another_loss():
    trace = transformer_trace()
    facts = some_facts(replace(trace, ops=trace.ops[:-1]))
    assert "not a cross-entropy" in (OPTION.why_not(facts) or "")


def test_a_copy_of_the_logits_is_seen_through_and_other_work_is_not():
    trace = transformer_trace()
    *before, log_softmax, nll = trace.ops
    for name, values in (("aten._to_copy.default", ["as-written", "chunked"]), ("aten.tanh.default", ["as-written"])):
        worked = replace(trace.ops[0].outputs[0], shape=log_softmax.inputs[0].shape, storage=len(trace.storages))
        between = replace(log_softmax, name=name, inputs=log_softmax.inputs, outputs=(worked,))
        changed = (*before, between, replace(log_softmax, inputs=(worked,)), nll)
        assert list(OPTION.values(some_facts(replace(trace, ops=changed)))) == values


def test_same_losses():
    assert losses(OPTION.apply(gpt(layers=2), "chunked"), steps=3) == pytest.approx(
        losses(gpt(layers=2), steps=3), rel=1e-5
    )


def test_refuses_a_loss_it_did_not_touch():
    with pytest.raises(UsageError, match="cross_entropy"):
        losses(OPTION.apply(mlp(width=8), "chunked"), steps=1)
