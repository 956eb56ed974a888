"""Whose fault an exception is, and which line is named."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import advisor
from advisor.errors import UsageError, WorkloadError
from advisor.workload.expressions import parse
from advisor.workload.failures import Origin, origin, user_code


def test_origin() -> None:
    assert origin(str(Path(advisor.__file__).parent / "trace" / "tracer.py")) is Origin.OURS
    assert origin(torch.__file__) is Origin.PLATFORM
    assert origin(f"{sysconfig.get_paths()['stdlib']}/json/decoder.py") is Origin.PLATFORM
    assert origin("/venv/lib/python3.11/site-packages/timm/models/vit.py") is Origin.PACKAGE
    assert origin("/home/me/model.py") is Origin.USER
    assert origin("<--model>") is Origin.USER
    assert origin("<frozen importlib._bootstrap>") is Origin.PLATFORM


def test_the_users_innermost_line_is_named(write: Callable[[str, str], Path]) -> None:
    path = write("model.py", "def outer(x):\n    return inner(x)\ndef inner(x):\n    return torch.mm(x, x)\n")
    names = {"torch": torch}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with pytest.raises(WorkloadError) as caught, user_code("building the model"):
        names["outer"](torch.zeros(2, 3))
    assert caught.value.message.startswith(
        f"building the model failed at {path}:4 (return torch.mm(x, x)): RuntimeError:"
    )


def test_a_flag_is_named_with_its_expression() -> None:
    with pytest.raises(WorkloadError) as caught, user_code("loading model.py"):
        parse("1 / zero", flag="--batch", scope={"zero": 0})()
    assert caught.value.message == "loading model.py failed at --batch `1 / zero`: ZeroDivisionError: division by zero"


def test_our_own_bugs_stay_bugs() -> None:
    with pytest.raises(AttributeError), user_code("tracing"):
        parse(None, flag="--batch", scope={})  # type: ignore[arg-type]


def test_our_own_errors_pass() -> None:
    with pytest.raises(UsageError, match="as it is"), user_code("tracing"):
        raise UsageError("as it is")


def test_notes_become_the_hint() -> None:
    error = RuntimeError("no")
    error.add_note("try this")
    with pytest.raises(WorkloadError) as caught, user_code("building", hint="not this", all_theirs=True):
        raise error
    assert caught.value.hint == "try this"


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cv2_of_nobody", "pip install cv2_of_nobody"), ("torch.no_such_module", None)],
)
def test_only_a_package_that_is_missing_is_to_be_installed(name: str, hint: str | None) -> None:
    with pytest.raises(WorkloadError) as caught, user_code("importing", all_theirs=True):
        __import__(name)
    assert caught.value.hint == hint
