"""A stored report, from a file or from standard input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.report.model import Report


def read(path: Path) -> Report:
    from advisor.report.model import LARGEST_FILE_BYTES, load, loads

    if str(path) != "-":
        return load(path)
    return loads(sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1), name="standard input")
