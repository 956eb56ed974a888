"""Resident memory of this process, as the Linux kernel counts it; `None` elsewhere. No torch.

Known limitation: without the right to reset the peak, the peak is that of the whole life of the process.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_PROCESS = Path("/proc/self")


def resident_bytes(*, process: Path = _PROCESS) -> int | None:
    """Resident set size now."""
    return _status(process, "VmRSS")


def peak_resident_bytes(*, process: Path = _PROCESS) -> int | None:
    """Largest resident set size since `reset_peak`."""
    return _status(process, "VmHWM")


def reset_peak(*, process: Path = _PROCESS) -> None:
    """Let `peak_resident_bytes` start again from now."""
    with contextlib.suppress(OSError):
        (process / "clear_refs").write_text("5")  # proc(5): 5 resets the peak resident set size


def available_bytes(*, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What the machine can still hand out without swapping."""
    return _kib(meminfo, "MemAvailable")


def _status(process: Path, field: str) -> int | None:
    return _kib(process / "status", field)


def _kib(file: Path, field: str) -> int | None:
    try:
        found = re.search(rf"^{field}:\s*(\d+) kB$", file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
