from __future__ import annotations

from pathlib import Path

import pytest

from advisor.cost.calibration import CalibrationFile, calibrations, nearest
from advisor.cost.classes import OpClass
from advisor.errors import ProfileError
from advisor.hardware.catalog import device
from advisor.hardware.schema import read

FILE = """
title = "A bench"
devices = ["rtx-3090"]
architecture = "Ampere"
host_launch = { value = "7 us", source = "bench" }
context = { value = "300 MiB", source = "bench" }
context_highest = { value = "1 GiB", source = "bench" }

[ceiling]
float16 = { value = "86.9 %", source = "bench" }

[classes."batched matmul"]
compute = { value = "50 %", source = "bench" }
bandwidth = { value = "101.5 %", source = "bench" }

[sources.bench]
title = "Bench"
address = "https://example.org"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADVISOR_PROFILES", str(tmp_path))
    (tmp_path / "calibration").mkdir()
    return tmp_path / "calibration"


def test_values_are_read_in_si_units(folder: Path) -> None:
    (folder / "bench.toml").write_text(FILE)
    found = next(c for c in calibrations() if c.name == "bench")
    assert found.host_launch is not None
    assert found.host_launch.value == pytest.approx(7e-6)
    assert found.ceiling["float16"].value == pytest.approx(0.869)
    factors = found.classes[OpClass.BATCHED_MATMUL]
    assert factors.compute is not None
    assert (factors.compute.value, factors.bandwidth.value) == pytest.approx((0.5, 1.015))
    assert found.context is not None
    assert [bound.value for bound in found.context] == [300 * 2**20, 2**30]
    assert factors.compute.source == "Bench (https://example.org)"


def test_a_file_of_the_users_replaces_the_shipped_one(folder: Path) -> None:
    (folder / "rtx-3090.toml").write_text(FILE)
    assert [c.ceiling["float16"].value for c in calibrations() if c.name == "rtx-3090"] == [pytest.approx(0.869)]


@pytest.mark.parametrize(
    "old, new, fault",
    [
        ('"86.9 %"', '"0.869"', "a share is due"),
        ('"7 us"', '"7"', "a duration is due"),
        ('[classes."batched matmul"]', '[classes."batched gemm"]', "batched"),
        ('context_highest = { value = "1 GiB", source = "bench" }', "", "belong together"),
        ('source = "bench" }\n\n[ceiling]', 'source = "other" }\n\n[ceiling]', "no entry of [sources]"),
        ('float16 = { value = "86.9 %"', 'float12 = { value = "86.9 %"', "ceiling"),
    ],
)
def test_faults(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in FILE
    path = tmp_path / "bench.toml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(ProfileError) as caught:
        read(path, CalibrationFile)
    assert fault in caught.value.message


def test_own_then_architecture_then_any() -> None:
    order = nearest(device("rtx-3090"), calibrations())
    assert order[0].name == "rtx-3090"
    architectures = [calibration.architecture for calibration in order]
    assert "Ampere" not in architectures[architectures.count("Ampere") :]
