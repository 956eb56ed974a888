from __future__ import annotations

from dataclasses import replace

import pytest

from advisor.cost.classes import OpClass
from advisor.cost.rates import Rates, rates_for
from advisor.cost.roofline import Work
from advisor.errors import ProfileError
from advisor.hardware.catalog import device
from advisor.hardware.profile import DeviceProfile, Sourced


def rates(name: str = "a100-sxm4-80gb") -> Rates:
    found = rates_for(device(name))
    assert found is not None
    return found


def faster(profile: DeviceProfile, factor: float) -> DeviceProfile:
    assert profile.memory_bandwidth is not None
    value = profile.memory_bandwidth.value * factor
    return replace(profile, memory_bandwidth=Sourced(value=value, source="made up"))


def test_datasheet_times_ceiling_times_share() -> None:
    found = rates()
    work = Work(OpClass.MATMUL, "bfloat16", 10**12, 10**9)
    share = found.classes[OpClass.MATMUL]
    assert share.compute is not None
    # 312 TFLOP/s and 2.039 TB/s on the datasheet; the best matmul reaches 86.9 %, streams 88.1 %
    assert found.seconds(work) == pytest.approx(
        (10**12 / (312e12 * 0.869 * share.compute.value), 10**9 / (2.039e12 * 0.881 * share.bandwidth.value)), rel=1e-3
    )


def test_a_dtype_without_a_peak_is_an_error_that_names_both() -> None:
    with pytest.raises(ProfileError) as caught:
        rates("v100-sxm2-16gb").seconds(Work(OpClass.MATMUL, "bfloat16", 10, 10))
    assert "v100-sxm2-16gb" in caught.value.message
    assert "bfloat16" in caught.value.message
    assert caught.value.hint is not None
    assert "float16" in caught.value.hint


def test_tf32_is_plain_float32_where_the_device_has_none() -> None:
    assert rates("v100-sxm2-16gb").precision("tf32") == "float32"
    assert rates("a100-sxm4-80gb").precision("tf32") == "tf32"


def test_without_bandwidth_or_peak_there_are_no_rates() -> None:
    profile = device("a100-sxm4-80gb")
    assert rates_for(replace(profile, memory_bandwidth=None)) is None
    assert rates_for(replace(profile, peak_flops={})) is None


def test_unpriced_operators_run_at_the_slowest_share() -> None:
    found = rates()
    unpriced = found.seconds(Work(OpClass.UNPRICED, "", 0, 10**9))[1]
    for op_class in found.classes:
        assert unpriced >= found.seconds(Work(op_class, "", 0, 10**9))[1]


def test_a_device_that_borrows_says_so_and_has_the_wider_band() -> None:
    own, borrowing = rates("rtx-3090"), rates("a10")
    assert "borrowed" in borrowing.ceiling["float16"].source
    assert "borrowed" not in own.ceiling["float16"].source
    assert borrowing.band[0].value <= own.band[0].value
    assert borrowing.band[1].value >= own.band[1].value


def test_faster_memory_is_never_slower() -> None:
    profile = device("rtx-3090")
    work = [Work(op_class, "float16", 10**9, 10**8) for op_class in rates("rtx-3090").classes]
    slow, fast = rates_for(profile), rates_for(faster(profile, 2.0))
    assert slow is not None
    assert fast is not None
    assert all(max(fast.seconds(item)) <= max(slow.seconds(item)) for item in work)


def test_evidence_names_datasheet_measurement_and_fit() -> None:
    evidence = dict(rates("rtx-3090").evidence(OpClass.MATMUL, ["float16"]))
    assert any("Datasheet" in source for source in evidence)
    assert any("Best matmul" in source for source in evidence)
    assert any("Fit of" in source for source in evidence)
