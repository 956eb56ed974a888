"""Any accelerator that `torch.accelerator` covers (CUDA, ROCm, MPS, XPU): the allocator's own statistics.

Known limitation: an accelerator without allocator statistics (MPS in torch 2.13) is timed, and its peaks stay blank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from advisor.hardware.detect import local_device
from advisor.measure.backends.base import PeakMemory
from advisor.workload.step import Prepared


class AcceleratorBackend:
    """The current accelerator of this process."""

    name = "accelerator"
    order = 50

    def is_available(self) -> bool:
        return torch.accelerator.is_available()

    def device(self) -> str:
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None, "called only where is_available()"
        return accelerator.type

    def describe(self) -> str:
        return f"{self.device()}: {local_device().title}"

    def free_bytes(self) -> int | None:
        """What the driver has free, and what our own allocator holds without using it."""
        try:
            free, _ = torch.accelerator.get_memory_info()
        except RuntimeError:  # an accelerator that does not say
            return None
        stats = _statistics()
        held = stats.get("reserved_bytes.all.current", 0) - stats.get("allocated_bytes.all.current", 0)
        return int(free + held)

    def synchronize(self) -> None:
        torch.accelerator.synchronize()

    @contextmanager
    def recording(self, step: Prepared) -> Iterator[PeakMemory]:
        peak = PeakMemory()
        self.synchronize()
        if _statistics():
            torch.accelerator.reset_peak_memory_stats()
        yield peak
        self.synchronize()
        stats = _statistics()
        peak.allocated_bytes = stats.get("allocated_bytes.all.peak")
        peak.reserved_bytes = stats.get("reserved_bytes.all.peak")


BACKEND = AcceleratorBackend()


def _statistics() -> Mapping[str, Any]:
    try:
        return torch.accelerator.memory_stats()
    except RuntimeError:  # an accelerator without allocator statistics
        return {}
