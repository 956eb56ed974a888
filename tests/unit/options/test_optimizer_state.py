from dataclasses import replace

import pytest
import torch
from fabricated_facts import CPU, V100, some_facts, transformer_trace
from small_workloads import losses, mlp

from advisor.errors import UsageError
from advisor.options.base import Risk
from advisor.options.optimizer_state import OPTION
from advisor.trace.records import OptimizerRecord


@pytest.mark.parametrize(("device", "has_fp8"), [(None, True), (CPU, True), (V100, False)])
def test_fp8_needs_a_device_that_converts_it(device, has_fp8):
    values = ["as-is", "adam-8bit", *(["adam-fp8"] if has_fp8 else []), "adam-4bit", "adafactor"]
    assert list(OPTION.values(some_facts(device=device))) == values


def test_other_optimizers_are_left_alone():
    facts = some_facts(replace(transformer_trace(), optimizer=OptimizerRecord("SGD", "foreach", 0.1)))
    assert list(OPTION.values(facts)) == ["as-is"]
    assert "SGD" in (OPTION.why_not(facts) or "")
    workload = replace(mlp(width=8), make_optimizer=lambda model: torch.optim.SGD(model.parameters()))
    changed = OPTION.apply(workload, "adam-8bit")
    with pytest.raises(UsageError, match="SGD"):
        changed.make_optimizer(changed.build_model())


@pytest.mark.parametrize(("value", "apart"), [("adam-8bit", 0.02), ("adam-fp8", 0.02), ("adam-4bit", 0.12)])
def test_trains_as_adamw_does(value, apart):
    plain, quantised = losses(mlp(layers=2), steps=8), losses(OPTION.apply(mlp(layers=2), value), steps=8)
    assert quantised == pytest.approx(plain, rel=apart)
    assert quantised[-1] < 0.8 * quantised[0]


def test_adafactor_trains():
    first, *_, last = losses(OPTION.apply(mlp(layers=2), "adafactor"), steps=8)
    assert last < first


def test_risk():
    assert OPTION.risk("adam-4bit") is Risk.NUMERICS
    assert OPTION.risk("adafactor") is Risk.OPTIMISATION
