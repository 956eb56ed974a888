from dataclasses import replace

import pytest
import torch
from fabricated_facts import CPU, V100, a_device, some_facts, transformer_trace
from small_workloads import losses, mlp

from advisor.options.base import Risk
from advisor.options.precision import OPTION
from advisor.trace.records import OptimizerRecord
from advisor.workload.techniques.compensated import CompensatedAdam


@pytest.mark.parametrize(
    ("device", "values"),
    [
        (a_device(), ["fp32", "tf32", "amp-bf16", "amp-fp16", "bf16-kahan", "bf16"]),
        (V100, ["fp32", "amp-fp16"]),
        (CPU, ["fp32", "amp-bf16", "bf16-kahan", "bf16"]),
        (replace(CPU, native_bfloat16=False), ["fp32"]),
        (a_device(compute_capability=None, native_bfloat16=None), ["fp32", "amp-fp16"]),  # known by its memory alone
    ],
)
def test_legal_values_follow_the_device(device, values):
    facts = some_facts(device=device)
    assert list(OPTION.values(facts)) == values
    assert (OPTION.why_not(facts) is None) == (len(values) > 1)


def test_a_workload_with_its_own_precision_is_left_alone():
    facts = some_facts(transformer_trace(dtype="bfloat16"))
    assert list(OPTION.values(facts)) == ["as-is"]
    assert "bfloat16" in (OPTION.why_not(facts) or "")


def test_compensation_is_offered_where_the_optimizer_has_a_compensated_form():
    trace = replace(transformer_trace(), optimizer=OptimizerRecord("Muon", "custom", 0.02))
    assert "bf16-kahan" not in OPTION.values(some_facts(trace))


def test_autocast_and_tf32_change_the_execution_only():
    workload = mlp()
    assert OPTION.apply(workload, "tf32").execution.allow_tf32
    half = OPTION.apply(workload, "amp-fp16")
    assert (half.execution.autocast_dtype, half.execution.grad_scaler) == ("float16", True)
    brain = OPTION.apply(workload, "amp-bf16")
    assert (brain.execution.autocast_dtype, brain.execution.grad_scaler) == ("bfloat16", False)
    assert brain.build_model is workload.build_model


def test_pure_bfloat16_converts_model_and_batch():
    workload = OPTION.apply(mlp(), "bf16")
    assert {p.dtype for p in workload.build_model().parameters()} == {torch.bfloat16}
    assert workload.make_batch(2).dtype == torch.bfloat16


def test_kahan_replaces_the_optimizer_and_trains_as_float32_does():
    workload = OPTION.apply(mlp(width=32), "bf16-kahan")
    assert isinstance(workload.make_optimizer(workload.build_model()), CompensatedAdam)
    assert losses(workload, steps=10) == pytest.approx(losses(mlp(width=32), steps=10), rel=0.02)


def test_risk_grows_from_tf32_to_pure_bfloat16():
    assert OPTION.risk("fp32") is Risk.NOTHING
    assert OPTION.risk("tf32") is OPTION.risk("amp-fp16") is Risk.NUMERICS
    assert OPTION.risk("bf16") is OPTION.risk("bf16-kahan") is Risk.OPTIMISATION
