from dataclasses import replace

import pytest
from fabricated_facts import some_facts
from small_workloads import gpt
from torch import nn

from advisor.errors import UsageError
from advisor.options.base import Risk
from advisor.options.variant import OPTION


def test_offers_what_is_declared():
    assert list(OPTION.values(some_facts(variants=("half-depth", "tiny")))) == ["as-is", "half-depth", "tiny"]
    assert OPTION.why_not(some_facts()) is not None
    assert OPTION.risk("tiny") is Risk.MODEL


def test_builds_the_smaller_model():
    workload = replace(gpt(), variants={"tiny": lambda: nn.Linear(1, 1)})
    assert isinstance(OPTION.apply(workload, "tiny").build_model(), nn.Linear)
    with pytest.raises(UsageError, match="big"):
        OPTION.apply(workload, "big")


def test_half_the_sequence_halves_the_batch_too():
    workload = replace(gpt(length=64), variants={"half-sequence": gpt(length=32).build_model})
    tokens, targets = OPTION.apply(workload, "half-sequence").make_batch(2)
    assert tokens.shape == targets.shape == (2, 32)
