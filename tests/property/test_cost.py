"""What must hold for the price of any step: better hardware and less work are never slower or larger."""

from __future__ import annotations

from dataclasses import replace

from fabricated_traces import linear_chain
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.cost.estimate import TimeEstimate
from advisor.cost.memory import estimate_memory
from advisor.cost.price import estimate_time
from advisor.hardware.catalog import device
from advisor.hardware.profile import DeviceProfile, Sourced
from advisor.trace.records import StepTrace

A100 = device("a100-sxm4-80gb")
ROUNDING = 1 + 1e-9

sizes = st.integers(1, 4096)
factors = st.floats(1.0, 8.0)


def scaled(profile: DeviceProfile, *, bandwidth: float = 1.0, peak: float = 1.0) -> DeviceProfile:
    assert profile.memory_bandwidth is not None
    return replace(
        profile,
        memory_bandwidth=Sourced(value=profile.memory_bandwidth.value * bandwidth, source="made up"),
        peak_flops={
            name: Sourced(value=rate.value * peak, source="made up") for name, rate in profile.peak_flops.items()
        },
    )


def priced(trace: StepTrace, profile: DeviceProfile) -> TimeEstimate:
    found = estimate_time(trace, profile)
    assert found is not None
    return found


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, factors, factors)
def test_a_faster_device_is_never_slower(batch: int, width: int, bandwidth: float, peak: float) -> None:
    trace = linear_chain(batch=batch, width=width, layers=2)
    slow, fast = priced(trace, A100), priced(trace, scaled(A100, bandwidth=bandwidth, peak=peak))
    assert fast.step_s <= slow.step_s * ROUNDING


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.integers(1, 4096))
def test_a_bigger_batch_is_never_faster(width: int, one: int, other: int) -> None:
    small, large = (priced(linear_chain(batch=b, width=width, layers=2), A100) for b in sorted((one, other)))
    assert small.step_s <= large.step_s * ROUNDING


@settings(max_examples=40, deadline=None)
@given(sizes, sizes)
def test_no_step_beats_the_best_matmul_or_the_host(batch: int, width: int) -> None:
    trace = linear_chain(batch=batch, width=width, layers=2)
    found = priced(trace, A100)
    assert found.mfu is not None
    assert 0 <= found.mfu <= 1
    assert found.step_s >= 7e-6 * len(trace.steady_ops()) / ROUNDING  # 7 us an operator, profiles/calibration


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, st.booleans())
def test_memory_keeps_its_order(batch: int, width: int, expandable: bool) -> None:
    trace = linear_chain(batch=batch, width=width, layers=2)
    found = estimate_memory(trace, A100, expandable_segments=expandable)
    assert sum(p.nbytes for p in trace.parameters) <= found.allocated_peak_bytes <= found.reserved_peak_bytes
    assert found.low_bytes <= found.required_bytes <= found.high_bytes
    assert found.next_peak is None or found.next_peak.allocated_bytes <= found.peak.allocated_bytes
    assert found.first_step_peak.allocated_bytes <= found.allocated_peak_bytes
