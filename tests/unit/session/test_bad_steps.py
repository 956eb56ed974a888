"""Files that load and whose step can't be made: the error names the user's line."""

from __future__ import annotations

import pytest
from user_files import MODELS

from advisor.errors import AdvisorError, WorkloadError
from advisor.measure.result import Outcome
from advisor.options.base import Recipe
from advisor.session.local import LocalSession
from advisor.trace.records import TraceTarget
from advisor.workload.loader import load
from advisor.workload.target import TargetSpec

RECIPE = Recipe(micro_batch_size=4)


def session(name: str, *inputs: str) -> LocalSession:
    return LocalSession(*load(TargetSpec(target=str(MODELS / name), inputs=inputs)))


def test_a_loss_that_is_no_scalar() -> None:
    with pytest.raises(WorkloadError, match=r"the loss has shape \(4, 8\), not a scalar"):
        session("vector_loss.py").trace(RECIPE, TraceTarget(device_type="cpu"))


def test_a_forward_whose_shapes_do_not_fit() -> None:
    with pytest.raises(AdvisorError, match=r"wrong_forward\.py:11.*self\.second\(self\.first\(x\)\)"):
        session("wrong_forward.py", "f32:8").trace(RECIPE, TraceTarget(device_type="cpu"))


def test_a_forward_whose_shapes_do_not_fit_measured() -> None:
    measurement = session("wrong_forward.py", "f32:8").measure(RECIPE, time_limit_s=1.0)
    assert measurement.outcome is Outcome.CRASHED
    assert "wrong_forward.py:11 (return self.second(self.first(x))): RuntimeError: mat1 and mat2" in measurement.reason


@pytest.mark.parametrize(
    ("name", "message"),
    [("no_params.py", "Net has no parameters"), ("frozen.py", "all 2 parameters of Net are frozen")],
)
def test_nothing_to_train(name: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        session(name, "f32:8").trace(RECIPE, TraceTarget(device_type="cpu"))
