from __future__ import annotations

import time
from dataclasses import replace

import pytest
from fabricated_traces import TraceBuilder, linear_chain

from advisor.cost.price import estimate_time, op_seconds, price
from advisor.errors import ProfileError
from advisor.hardware.catalog import device
from advisor.hardware.profile import Sourced
from advisor.trace.records import Category, Phase, StepTrace

RTX_3090 = device("rtx-3090")


def test_the_parts_add_up_to_the_step() -> None:
    found = estimate_time(linear_chain(), RTX_3090)
    assert found is not None
    parts = found.compute_s + found.memory_bound_s + found.launch_bound_s + found.offload_s
    assert found.step_s == pytest.approx(parts)
    assert found.low_s < found.step_s < found.high_s
    busy = sum(line.seconds for line in found.by_class)
    assert busy == pytest.approx(found.compute_s + found.memory_bound_s)


def test_operator_seconds_add_up_to_the_step() -> None:
    trace = replace(linear_chain(), num_microbatches=1)
    found = estimate_time(trace, RTX_3090)
    assert found is not None
    assert sum(op_seconds(trace, RTX_3090)) == pytest.approx(found.step_s)


def test_later_micro_batches_count_as_often_as_they_run() -> None:
    builder = TraceBuilder()
    data = builder.tensor((10**8,), "float32", Category.PARAMETER)
    for microbatch in (0, 1):
        builder.op("aten.relu_.default", (data,), (data,), microbatch=microbatch, pointwise=True)
    two, five = (estimate_time(builder.build(num_microbatches=n), RTX_3090) for n in (2, 5))
    assert two is not None
    assert five is not None
    assert five.memory_bound_s == pytest.approx(two.memory_bound_s * 5 / 2)


def test_utilisation_leaves_recomputation_out_of_model_flops() -> None:
    trace = linear_chain(batch=4096, width=4096)
    ops = tuple(
        replace(op, phase=Phase.RECOMPUTE) if op.module == "layers.0" and op.phase is Phase.FORWARD else op
        for op in trace.ops
    )
    found = estimate_time(replace(trace, ops=ops), RTX_3090)
    assert found is not None
    assert found.hardware_flops == trace.flops_per_step() == 9 * 2 * 4096**3
    assert found.model_flops == 8 * 2 * 4096**3
    assert found.mfu == pytest.approx(found.model_flops / (found.step_s * 71e12))
    assert found.hfu == pytest.approx(found.hardware_flops / (found.step_s * 71e12))


def test_a_device_known_by_its_memory_has_no_time() -> None:
    bare = replace(RTX_3090, memory_bandwidth=None, peak_flops={})
    found = price(linear_chain(), bare)
    assert found.time is None
    assert found.memory.allocated_peak_bytes > 0
    assert any("no rates" in note for note in found.notes)
    with pytest.raises(ProfileError):
        op_seconds(linear_chain(), bare)


def test_what_no_class_knows_is_listed_with_its_bound() -> None:
    builder = TraceBuilder()
    data = builder.tensor((10**6,), "float32", Category.PARAMETER)
    for module in ("a", "b"):
        builder.op("mylib.fancy.default", (data,), (data,), module=module)
    found = estimate_time(builder.build(), RTX_3090)
    assert found is not None
    (line,) = found.unpriced
    assert (line.name, line.count, line.module) == ("mylib.fancy.default", 2, "a")
    assert 0 < line.bound_seconds <= found.step_s


def test_every_rate_names_its_source() -> None:
    found = estimate_time(linear_chain(), RTX_3090)
    assert found is not None
    text = "\n".join(found.sources)
    for what in ("bandwidth", "float16 peak", "float16 ceiling", "matmul", "launch of a kernel", "band"):
        assert what in text


def test_a_step_faster_than_the_best_matmul_is_refused() -> None:
    assert RTX_3090.memory_bandwidth is not None
    half = replace(RTX_3090, peak_flops={"float16": Sourced(value=1e12, source="made up")}, name="half-described")
    trace = linear_chain(batch=4096, width=4096)
    found = estimate_time(trace, half)
    assert found is not None
    assert found.mfu is not None
    assert found.mfu <= 1.25
    ops = tuple(replace(op, flops=op.flops, attributes=(("is_causal", True),)) for op in trace.ops)
    with pytest.raises(ProfileError, match="float16 peak"):
        estimate_time(replace(trace, ops=ops), half)


@pytest.mark.parametrize("name", ["batch", "width", "layers"])
def test_more_work_never_takes_less_time(name: str) -> None:
    small, large = (estimate_time(linear_chain(**{name: size}), RTX_3090) for size in (8, 16))
    assert small is not None
    assert large is not None
    assert large.step_s >= small.step_s * (1 - 1e-9)


def test_twenty_five_thousand_operators_take_a_third_of_a_second() -> None:
    trace = _long(linear_chain(layers=40), 25_000)
    estimate_time(trace, RTX_3090)  # profiles are read once
    start = time.process_time()
    estimate_time(trace, RTX_3090)
    assert time.process_time() - start < 0.6  # twice what it takes on a quiet machine


def _long(trace: StepTrace, num_ops: int) -> StepTrace:
    steady = trace.steady_ops()
    return replace(trace, ops=(steady * (num_ops // len(steady) + 1))[:num_ops], steady_start=0)
