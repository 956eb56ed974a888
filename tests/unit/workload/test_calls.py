"""Calls of a class found in the user's repository."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from advisor.workload.calls import find_calls


def test_calls_with_literals_come_first(
    write: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("train.py", "net = UNet(args.channels, n_classes=2)\n")
    write("scripts/predict.py", "import models\n\nnet = models.UNet(3, n_classes=2)\n")
    write("notes.py", "UNet()\nNotUNet(3)\nUNet\n")
    write("broken.py", "UNet(3\n")
    write(".venv/lib/copy.py", "UNet(1)\n")
    monkeypatch.chdir(tmp_path)
    assert find_calls("UNet", tmp_path) == [
        "scripts/predict.py:3: models.UNet(3, n_classes=2)",
        "train.py:1: UNet(args.channels, n_classes=2)",
    ]


def test_long_calls_are_cut(write: Callable[[str, str], Path], tmp_path: Path) -> None:
    write("train.py", f"UNet({', '.join(map(str, range(200)))})\n")
    (call,) = find_calls("UNet", tmp_path)
    assert call.endswith("...")
    assert len(call) < len(str(tmp_path)) + 130
