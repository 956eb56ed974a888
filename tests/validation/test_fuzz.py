"""A few mutated files and expressions in every run; two thousand: `python tests/validation/fuzz.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).with_name("fuzz.py")


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits what the fork may take")
def test_a_few_cases() -> None:
    source = {"PYTHONPATH": str(FUZZ.parents[2])}  # where it is not installed
    command = (sys.executable, str(FUZZ), "--cases", "12", "--limit", "60")
    ended = subprocess.run(command, env=os.environ | source, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("bug: 0\n")
