"""`Measurement`: what a real run took. A different type from `Estimate` all the way to the page. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    COMPLETED = "completed"
    OUT_OF_MEMORY = "out-of-memory"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    NAN_LOSS = "nan-loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    outcome: Outcome
    reason: str = ""  # for anything but COMPLETED: what happened, with the user's own frame
    device: str = ""  # "cpu: AMD EPYC 7R13, 2 threads"
    step_time_s: float | None = None  # median
    step_time_low_s: float | None = None  # 10th and 90th percentile
    step_time_high_s: float | None = None
    step_time_uncertainty: float | None = None  # share of the median that its 80 % interval reaches to
    num_steps: int = 0
    peak_allocated_bytes: int | None = None  # live tensors
    peak_reserved_bytes: int | None = None  # accelerators only
    peak_process_bytes: int | None = None
    final_loss: float | None = None
    software: str = ""
