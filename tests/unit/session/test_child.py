"""The user's code in a guarded child: an answer, or an error that says what it did and where."""

from __future__ import annotations

import os
import platform
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from user_files import MODELS

from advisor.errors import UsageError, WorkloadError
from advisor.measure.result import Outcome
from advisor.options.base import Recipe
from advisor.session.child import ChildSession, _check_torch, interpreter
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


# ---- --python -------------------------------------------------------------------------------------------------------


def test_an_interpreter_is_a_file_or_a_command() -> None:
    assert interpreter(None) == interpreter(sys.executable) == sys.executable
    assert Path(interpreter("sh")).is_absolute()
    with pytest.raises(UsageError, match="--python no/such/python: no such program"):
        interpreter("no/such/python")


def test_the_users_own_interpreter(tmp_path: Path) -> None:
    link = tmp_path / "bin" / "python"
    link.parent.mkdir()
    link.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    link.chmod(0o755)
    with ChildSession(replace(spec("mlp.py"), python=str(link))) as session:
        assert session.description.versions["python"] == platform.python_version()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'ImportError: cannot import name StrEnum' >&2; exit 1", "can't run advisor: ImportError: cannot import"),
        (f'exec {sys.executable} -S "$@"', "python has no torch"),
    ],
)
def test_an_interpreter_that_does_not_serve(tmp_path: Path, script: str, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(WorkloadError) as caught:
        ChildSession(replace(spec("mlp.py"), python=str(python)))
    assert message in caught.value.message


@pytest.mark.parametrize(("version", "serves"), [("2.13.0+cpu", True), ("2.11.0", True), ("2.4.1+cu121", False)])
def test_the_version_of_torch(version: str, serves: bool) -> None:
    if serves:
        _check_torch(version, None)
        return
    with pytest.raises(WorkloadError, match=r"py has torch 2.4.1\+cu121"):
        _check_torch(version, "py")
