"""The pipe's framing, and that nothing on it needs torch."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from advisor.errors import WorkloadError
from advisor.options.base import Recipe
from advisor.session import messages
from advisor.trace.records import TraceTarget
from advisor.workload.target import TargetSpec


@pytest.mark.parametrize(
    "message",
    [
        messages.Load(spec=TargetSpec(target="model.py", inputs=("f32:3",))),
        messages.Trace(recipe=Recipe(micro_batch_size=2), target=TraceTarget(device_type="cuda")),
        messages.Measure(recipe=Recipe(micro_batch_size=2), time_limit_s=3.0),
        messages.Crashed(traceback="Traceback"),
    ],
)
def test_round_trip(message: object) -> None:
    packed = messages.pack(message)
    assert messages.unpack(packed) == message
    assert messages.unpack(packed[:-1]) is None
    assert messages.unpack(b"") is None
    assert messages.read(io.BytesIO(packed)) == message
    assert messages.read(io.BytesIO(packed[:-1])) is None


def test_errors_cross_with_their_hint() -> None:
    error = messages.unpack(messages.pack(messages.Failed(error=WorkloadError("what", hint="do")))).error
    assert (type(error), error.message, error.hint) == (WorkloadError, "what", "do")


def test_the_parent_needs_no_torch() -> None:
    code = "import sys, advisor.session.child; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
