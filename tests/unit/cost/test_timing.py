from __future__ import annotations

import pytest
from fabricated_traces import TraceBuilder, linear_chain

from advisor.cost.rates import rates_for
from advisor.cost.timing import operator_seconds
from advisor.errors import ProfileError
from advisor.hardware.catalog import device
from advisor.trace.records import Category, Phase, StepTrace


def steps(name: str, *, count: int, numel: int, attributes: bool = True) -> StepTrace:
    """A steady step of `count` pointwise operators."""
    builder = TraceBuilder()
    data = builder.tensor((numel,), "float32", Category.PARAMETER)
    for _ in range(count):
        builder.op(name, (data,), (data,), pointwise=attributes)
    return builder.build()


def seconds(trace: StepTrace, name: str = "rtx-3090") -> list[float]:
    rates = rates_for(device(name))
    assert rates is not None
    return [op.total_s for op in operator_seconds(trace, rates)]


def test_a_step_of_tiny_kernels_takes_as_long_as_their_launches() -> None:
    rates = rates_for(device("rtx-3090"))
    assert rates is not None
    assert sum(seconds(steps("aten.relu_.default", count=1000, numel=1))) == pytest.approx(
        1000 * rates.host_launch.value, rel=0.01
    )


def test_a_device_that_is_behind_never_waits() -> None:
    rates = rates_for(device("rtx-3090"))
    assert rates is not None
    priced = operator_seconds(steps("aten.relu_.default", count=50, numel=10**8), rates)
    assert [op.waited_s for op in priced] == [0.0] * 50


def test_reading_a_value_back_makes_the_host_wait() -> None:
    builder = TraceBuilder()
    big = builder.tensor((10**8,), "float32", Category.PARAMETER)
    builder.op("aten.relu_.default", (big,), (big,), pointwise=True)
    builder.op("aten._local_scalar_dense.default", (big,), ())
    for _ in range(5):
        builder.op("aten.relu_.default", (big,), (big,), pointwise=True)
    rates = rates_for(device("rtx-3090"))
    assert rates is not None
    waits = [op.waited_s for op in operator_seconds(builder.build(), rates)]
    assert waits[2] == pytest.approx(2 * rates.host_launch.value)  # the read and the operator after it
    assert sum(waits[3:]) == 0


def test_operators_alike_are_priced_alike() -> None:
    trace = linear_chain(layers=4)
    rates = rates_for(device("rtx-3090"))
    assert rates is not None
    priced = operator_seconds(trace, rates)
    forward = [p for op, p in zip(trace.steady_ops(), priced, strict=True) if op.phase is Phase.FORWARD]
    assert len({p.kernels for p in forward}) == 1


def test_bytes_in_host_memory_cross_the_link() -> None:
    builder = TraceBuilder()
    saved = builder.tensor((10**6,), "float32", on_host=True)
    data = builder.tensor((10**6,), "float32")
    builder.op("aten.clone.default", (saved,), (data,))
    profile = device("rtx-3090")
    assert profile.host_bandwidth is not None
    assert seconds(builder.build()) == [pytest.approx(4e6 / profile.host_bandwidth.value + 0.0, abs=2e-5)]


def test_a_scalar_in_host_memory_costs_its_launch_alone() -> None:
    builder = TraceBuilder()
    step = builder.tensor((), "float32", on_host=True)
    builder.op("aten.add_.Tensor", (step,), (step,), pointwise=True)
    assert seconds(builder.build()) == [0.0]


def test_the_error_names_operator_and_module() -> None:
    builder = TraceBuilder()
    data = builder.tensor((8, 8), "float64")
    builder.op("aten.mm.default", (data, data), (data,), flops=1024, module="head")
    rates = rates_for(device("rtx-3090"))
    assert rates is not None
    with pytest.raises(ProfileError, match=r"float64 .*aten\.mm\.default in module 'head'"):
        operator_seconds(builder.build(), rates)
