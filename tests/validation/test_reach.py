"""The table of entry points, and how an outcome is judged; the run itself needs their repositories."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("reach", HERE / "reach.py")
assert SPEC is not None
assert SPEC.loader is not None
reach = importlib.util.module_from_spec(SPEC)
sys.modules["reach"] = reach
SPEC.loader.exec_module(reach)

ROW = reach.Row(
    name="x", repository="a/b", commit="0", path="model.py", flags={"model": "Net(1)"}, parameters=10, runs=True
)
ASKS = reach.Attempt(flags=(), exit_code=2, error="error: Net(n) needs n\nhint: --model 'Net(n=...)'\n")
BUG = reach.Attempt(flags=("model",), exit_code=101, error="Traceback (most recent call last):\n")
NAMELESS = reach.Attempt(flags=(), exit_code=2, error="error: no\n")

DOUBTED = reach.Attempt(flags=(), exit_code=0, parameters=7_000_000_000, warned=True)


def built(*flags: str, parameters: int = 10) -> object:
    return reach.Attempt(flags=flags, exit_code=0, parameters=parameters)


def test_the_rows() -> None:
    rows = reach.read_rows(HERE / "reach.csv")
    assert len({row.name for row in rows}) == len(rows) == 64
    assert sum(row.runs for row in rows) == 52
    assert all(len(row.commit) == 40 and "/" in row.repository and row.path for row in rows)


@pytest.mark.parametrize(
    ("attempts", "kind"),
    [
        ((built(),), "right at once"),
        ((built(parameters=11),), "wrong or unclear"),
        ((ASKS, built("model")), "right with the flags the errors named"),
        ((NAMELESS, built("model")), "right with all flags, not all of them named"),
        ((ASKS, ASKS), "clear error"),
        ((ASKS, BUG), "wrong or unclear"),
        ((NAMELESS,), "wrong or unclear"),
        ((DOUBTED, built("model")), "right with the flags the errors named"),
    ],
)
def test_the_judgement(attempts: tuple[object, ...], kind: str) -> None:
    assert reach.Outcome(row=ROW, attempts=attempts, seconds=1.0).kind == kind
