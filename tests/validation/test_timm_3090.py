"""24 published rows, carried with the project; the whole table is `python tests/validation/timm_3090.py`."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("timm_3090", HERE / "timm_3090.py")
assert SPEC is not None
assert SPEC.loader is not None
timm_3090 = importlib.util.module_from_spec(SPEC)
sys.modules["timm_3090"] = timm_3090
SPEC.loader.exec_module(timm_3090)


def test_the_carried_rows_are_the_published_ones() -> None:
    rows = timm_3090.read_rows(HERE / "timm_3090.csv")
    assert len(rows) == 24
    assert {row.layout for row in rows} == {"nchw", "nhwc"}
    assert all(row.batch in timm_3090.LADDER and row.step_s > 0 for row in rows)


ROW = timm_3090.Row(model="x", layout="nchw", image_size=224, parameters=1_230_000, batch=64, step_s=1.0)
GOOD = timm_3090.Outcome(row=ROW, parameters=1_234_567, fits=True, next_fits=False, step_s=1.1, low_s=0.9, high_s=1.2)


def test_a_model_that_cannot_be_assessed_counts_as_a_miss() -> None:
    figures = timm_3090.summarise([GOOD, timm_3090.Outcome(row=ROW, error="KeyError: 'x'")])
    assert (figures.decisions, figures.right, figures.wrong_fits, figures.in_band) == (4, 2, 0, 1)
    assert figures.median == pytest.approx(0.1)


def test_a_model_with_other_parameters_is_named() -> None:
    figures = timm_3090.summarise([GOOD, replace(GOOD, parameters=2_000_000)])
    assert (figures.changed, figures.decisions, figures.right) == (("x",), 4, 4)


@pytest.mark.models
@pytest.mark.slow
def test_decisions_and_step_times() -> None:
    pytest.importorskip("timm")
    figures = timm_3090.summarise(list(timm_3090.run(timm_3090.read_rows(HERE / "timm_3090.csv"), jobs=1)))
    assert not figures.failed
    assert figures.right >= 0.97 * figures.decisions
    assert figures.wrong_fits == 0
    assert figures.median <= 0.15
