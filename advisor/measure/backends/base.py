"""The contract of a measuring backend."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from advisor.workload.step import Prepared


@dataclass(slots=True)
class PeakMemory:
    """The highest readings so far; `None`: this device does not say."""

    allocated_bytes: int | None = None  # live tensors
    reserved_bytes: int | None = None  # what the caching allocator holds

    def include(self, other: PeakMemory) -> None:
        """The higher of the two, reading by reading."""
        self.allocated_bytes = _higher(self.allocated_bytes, other.allocated_bytes)
        self.reserved_bytes = _higher(self.reserved_bytes, other.reserved_bytes)


class Backend(Protocol):
    """One kind of device: a file in this folder that defines `BACKEND`."""

    name: str  # the file's name
    order: int  # the first available one, low to high, is used

    def is_available(self) -> bool: ...

    def device(self) -> str:
        """As torch names it: "cpu", "cuda"."""
        ...

    def describe(self) -> str:
        """For the report: "cpu: AMD EPYC 7R13, 2 threads"."""
        ...

    def free_bytes(self) -> int | None:
        """Memory that a workload may still take; `None`: not known."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all it was given."""
        ...

    def recording(self, step: Prepared) -> AbstractContextManager[PeakMemory]:
        """Peak memory of what runs inside, filled in at the end. May slow it: not for timed steps."""
        ...


def _higher(first: int | None, second: int | None) -> int | None:
    return max((value for value in (first, second) if value is not None), default=None)
