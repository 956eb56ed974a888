"""What every calibration shipped has to keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.cost.calibration import CalibrationFile, calibrations
from advisor.cost.classes import ARITHMETIC_CLASSES, OpClass
from advisor.cost.rates import rates_for
from advisor.hardware.catalog import device, device_names, profile_folders
from advisor.hardware.schema import read

FILES = sorted((list(profile_folders())[-1] / "calibration").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_valid_and_names_known_devices(path: Path) -> None:
    file = read(path, CalibrationFile)
    assert {device(name).architecture for name in file.devices} == {file.architecture}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_ceilings_belong_to_stated_peaks_and_are_plausible(path: Path) -> None:
    file = read(path, CalibrationFile)
    for name in file.devices:
        peaks = device(name).peak_flops
        for key, share in file.ceiling.items():
            assert key == "memory" or key in peaks or {key, *peaks} >= {"float16", "bfloat16"}
            assert 0.3 < share.number < 1.25  # the least and the most in the published tables: 0.51 and 1.21


def test_no_device_is_calibrated_twice() -> None:
    names = [name for calibration in calibrations() for name in calibration.devices]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", device_names())
def test_every_device_with_rates_can_price_every_class(name: str) -> None:
    rates = rates_for(device(name))
    if rates is None:
        return
    priced = set(OpClass) - {OpClass.NO_KERNEL, OpClass.UNPRICED}
    assert set(rates.classes) == priced
    assert all(rates.classes[op_class].compute is not None for op_class in ARITHMETIC_CLASSES)
    low, high = rates.band
    assert low.value < 1 < high.value
