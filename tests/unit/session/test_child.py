"""The user's code in a guarded child: an answer, or an error that says what it did and where."""

from __future__ import annotations

import os
import signal

import pytest
from user_files import MODELS

from advisor.errors import WorkloadError
from advisor.measure.result import Outcome
from advisor.options.base import Recipe
from advisor.session.child import ChildSession
from advisor.trace.records import TraceTarget
from advisor.workload.target import Limits, TargetSpec

CPU = TraceTarget(device_type="cpu")


def spec(name: str, **limits: float) -> TargetSpec:
    return TargetSpec(target=str(MODELS / name), limits=Limits(**limits))  # type: ignore[arg-type]


def test_a_session() -> None:
    with ChildSession(spec("mlp.py")) as session:
        assert session.description.settings["samples"] == "1M"
        trace = session.trace(Recipe(micro_batch_size=4), CPU)
        assert session.trace(Recipe(micro_batch_size=4), CPU) is trace
        assert trace.micro_batch_size == 4
        measurement = session.measure(Recipe(micro_batch_size=4), time_limit_s=5.0)
        assert measurement.outcome in {Outcome.COMPLETED, Outcome.TIMED_OUT}  # on a busy machine
        assert measurement.software.startswith("torch")

        os.kill(session._child._process.pid, signal.SIGKILL)
        with pytest.raises(WorkloadError, match="tracing one step: your code was ended by SIGKILL"):
            session.trace(Recipe(micro_batch_size=2), CPU)
        assert session.trace(Recipe(micro_batch_size=2), CPU).micro_batch_size == 2


@pytest.mark.parametrize(
    ("name", "limits", "message", "hint"),
    [
        ("hangs.py", {"time_s": 1.0}, r"your code took longer than 1 s at .*hangs.py:4 \(time.sleep", "__main__"),
        (
            "allocates.py",
            {"memory_bytes": 600 << 20},
            r"your code allocated .* MiB, over the limit of 600 MiB at .*allocates.py:\d \(",
            "data sets",
        ),
        (
            "dies.py",
            {},
            r"your code ended its process with exit code 7 \(os._exit\?\), after printing\n  reading the licence",
            "run the file with python itself",
        ),
    ],
)
def test_what_ends_the_child(name: str, limits: dict[str, float], message: str, hint: str) -> None:
    with pytest.raises(WorkloadError, match=message) as caught:
        ChildSession(spec(name, **limits))
    assert hint in (caught.value.hint or "")


def test_a_missing_file_needs_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.session.child.ChildProcess", None)
    with pytest.raises(WorkloadError, match="no such file"):
        ChildSession(spec("no_such_model.py"))
