"""The stopwatch: one optimizer step, run for real until its median is known or the time is up.

The first two steps warm up (the first creates optimizer state and compiles, the second is the first steady one) and are
the ones whose memory is recorded; the timed steps after them run undisturbed.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from advisor.discovery import discover
from advisor.errors import MeasurementError
from advisor.measure import process_memory
from advisor.measure.backends.base import Backend, PeakMemory
from advisor.measure.result import Measurement, Outcome
from advisor.measure.spread import LEAST_RUNS, summarise
from advisor.units import format_bytes, format_seconds
from advisor.workload.failures import where
from advisor.workload.spec import Workload
from advisor.workload.step import Prepared, prepare, run_step

_WARM_UP_STEPS = 2
# What torch says, beside `torch.OutOfMemoryError`, when memory runs out: the CPU allocator and C++ itself, MPS.
_OUT_OF_MEMORY = ("DefaultCPUAllocator: ", "std::bad_alloc", "MPS backend out of memory")

Clock = Callable[[], float]


@dataclass(slots=True)
class _Readings:
    """What was measured so far; kept when a run ends early."""

    step_times_s: list[float] = field(default_factory=list)
    peak: PeakMemory = field(default_factory=PeakMemory)
    loss: float | None = None
    last_step_s: float = 0.0  # the warm-up's too: how long the next one may take


def local_backend() -> Backend:
    """The accelerator of this machine, else its CPU."""
    backends = discover("advisor.measure.backends", "BACKEND", Backend)  # type: ignore[type-abstract]
    return next(backend for backend in sorted(backends.values(), key=lambda b: b.order) if backend.is_available())


def check_room(bytes_needed: int, *, backend: Backend | None = None) -> None:
    """Refuse a measurement that can't fit, before anything is allocated, going by the predicted `bytes_needed`."""
    backend = backend or local_backend()
    free = backend.free_bytes()
    if free is not None and bytes_needed > free:
        raise MeasurementError(
            f"one step is predicted to need {format_bytes(bytes_needed)}, and {backend.describe()} has "
            f"{format_bytes(free)} free: nothing was run",
            hint="measure a smaller micro-batch, or on a larger machine; `advisor estimate` needs no memory",
        )


def measure_step(
    workload: Workload, *, time_limit_s: float, backend: Backend | None = None, clock: Clock = time.perf_counter
) -> Measurement:
    """Build the workload, warm up, and time steps until the median is known within 5 % or `time_limit_s` is over.

    Running out of memory, a NaN loss and a time limit too short for five steps are outcomes, with what was measured so
    far. A step under way is never interrupted: the limit holds to within one step.
    """
    backend = backend or local_backend()
    readings = _Readings()
    process_memory.reset_peak()
    resident = process_memory.resident_bytes()
    try:
        outcome, reason = _run(workload, backend, readings, clock, clock() + time_limit_s)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        outcome, reason = Outcome.OUT_OF_MEMORY, _told(error)
    highest = process_memory.peak_resident_bytes()
    measurement = Measurement(
        outcome=outcome,
        reason=reason,
        device=backend.describe(),
        peak_allocated_bytes=readings.peak.allocated_bytes,
        peak_reserved_bytes=readings.peak.reserved_bytes,
        peak_process_bytes=None if highest is None or resident is None else max(highest - resident, 0),
        final_loss=readings.loss if readings.loss is not None and math.isfinite(readings.loss) else None,
        software=software(),
    )
    if not readings.step_times_s:
        return measurement
    spread = summarise(readings.step_times_s)
    return replace(
        measurement,
        step_time_s=spread.median,
        step_time_low_s=spread.low,
        step_time_high_s=spread.high,
        step_time_uncertainty=spread.uncertainty,
        num_steps=spread.num_runs,
    )


def software() -> str:
    """The versions that a measurement depends on."""
    return f"torch {torch.__version__}, Python {platform.python_version()}"


def _run(
    workload: Workload, backend: Backend, readings: _Readings, clock: Clock, deadline: float
) -> tuple[Outcome, str]:
    step = prepare(workload, device=backend.device())
    for number in range(_WARM_UP_STEPS):
        if clock() > deadline:  # the first step, which may compile, says nothing about the second
            return _timed_out(f"{number} of {_WARM_UP_STEPS} warm-up steps", readings)
        with backend.recording(step) as peak:
            loss = _one_step(step, backend, readings, clock)
        readings.peak.include(peak)
        if not math.isfinite(loss):
            return Outcome.NAN_LOSS, f"the loss of step {number + 1} is {loss}"
    process_memory.reset_peak()  # the recording itself takes memory
    while not (readings.step_times_s and summarise(readings.step_times_s).settled):
        if clock() + readings.last_step_s > deadline:
            if len(readings.step_times_s) < LEAST_RUNS:
                return _timed_out(f"{len(readings.step_times_s)} of at least {LEAST_RUNS} timed steps", readings)
            break
        loss = _one_step(step, backend, readings, clock)
        readings.step_times_s.append(readings.last_step_s)
        if not math.isfinite(loss):
            number = _WARM_UP_STEPS + len(readings.step_times_s)
            return Outcome.NAN_LOSS, f"the loss of step {number} is {loss}"
    return Outcome.COMPLETED, ""


def _one_step(step: Prepared, backend: Backend, readings: _Readings, clock: Clock) -> float:
    backend.synchronize()
    start = clock()
    loss = run_step(step)
    backend.synchronize()
    readings.last_step_s = clock() - start
    readings.loss = float(loss)
    return readings.loss


def _timed_out(done: str, readings: _Readings) -> tuple[Outcome, str]:
    took = f"; the last step took {format_seconds(readings.last_step_s)}" if readings.last_step_s else ""
    return Outcome.TIMED_OUT, f"the time limit ended it after {done}{took}"


def _is_out_of_memory(error: BaseException) -> bool:
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or any(text in str(error) for text in _OUT_OF_MEMORY)


def _told(error: BaseException) -> str:
    place = where(error)
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"out of memory{f' at {place}' if place else ''}: {first_line}"
