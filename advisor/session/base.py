"""The contract of a session: one loaded workload, traced and measured as often as the search asks."""

from __future__ import annotations

from typing import Protocol, Self

from advisor.measure.result import Measurement
from advisor.options.base import Recipe
from advisor.trace.records import StepTrace, TraceTarget
from advisor.workload.spec import WorkloadDescription


class Session(Protocol):
    """A context manager; leaving it ends what it started."""

    @property
    def description(self) -> WorkloadDescription:
        """What was found and guessed; complete once one step was traced or measured."""
        ...

    def trace(self, recipe: Recipe, target: TraceTarget) -> StepTrace:
        """Two steps under `recipe` as if on `target`; the same question is answered from memory."""
        ...

    def measure(self, recipe: Recipe, *, time_limit_s: float) -> Measurement:
        """Steps run for real on this machine; out of memory, a crash or a time-out is an outcome, not an error."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...
