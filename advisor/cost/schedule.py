"""When the collectives of a step run beside its operators, and how much of them shows: a simulation of the queues.

One compute stream works off the steady step's operators in order. A collective starts when the operator before its
issue position is done, its stream is free and the collective it follows has ended; the operator at its wait position
starts when it has ended. The queue of DDP (`e_j = max(r_j, e_(j-1)) + c_j`, buckets ready at r_j) and the look-ahead of
FSDP2 by two units both follow from the positions that the strategies write.

Operators of micro-batch 1 run once for each later micro-batch. Compute that runs at the same time as a collective is
slowed by a factor (`CollectiveTime.overlap_slowdown`, assumed).

Known limitation: collectives on different streams don't slow each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from advisor.cost.collectives import CollectiveTime
from advisor.trace.records import CollectiveRecord, StepTrace

_EQUAL = 1e-9  # relative: two micro-batches that differ by less run alike


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSchedule:
    """Seconds of one optimizer step on one rank."""

    step_s: float
    compute_s: float  # the operators alone, without a collective beside them
    exposed_communication_s: float  # step_s - compute_s: waiting, and compute slowed by collectives
    stream_busy_s: tuple[tuple[str, float], ...]  # seconds of collectives by stream


def schedule_step(
    trace: StepTrace,
    *,
    op_seconds: Sequence[float],
    collectives: Sequence[CollectiveTime],
    overlap_slowdown: float | None = None,
) -> StepSchedule:
    """Run the steady step's operators and collectives.

    Args:
        trace: what a strategy made of the step.
        op_seconds: one per operator of the steady step, each run once.
        collectives: one per entry of `trace.collectives`.
        overlap_slowdown: factor on compute under a collective, instead of each collective's own.
    """
    queue = _Queue(trace.collectives, collectives, overlap_slowdown)
    ops, records, offset = trace.steady_ops(), trace.collectives, trace.steady_start
    repeated = [index for index, op in enumerate(ops) if op.microbatch]
    begin, stop = (repeated[0], repeated[-1] + 1) if repeated else (len(ops), len(ops))
    done = [0.0, *accumulate(op_seconds)]

    def part_of(position: int, record: CollectiveRecord) -> int:
        """0 before the later micro-batches, 1 in them, 2 after; a later one's own end is still in it."""
        if position - offset <= begin and not record.microbatch:
            return 0
        return 1 if position - offset <= stop else 2

    def part(number: int, start: int, to: int, *, is_last: bool = True) -> tuple[_Stop, ...]:
        issued = [
            (record.issue_position - offset, index)
            for index, record in enumerate(records)
            if part_of(record.issue_position, record) == number and (record.microbatch or is_last)
        ]
        waited = [
            (record.wait_position - offset, index)
            for index, record in enumerate(records)
            if part_of(record.wait_position, record) == number
        ]
        return _stops(done, start, to, issued, waited)

    queue.run(part(0, 0, begin))
    if repeated:
        queue.repeat(part(1, begin, stop, is_last=False), trace.num_microbatches - 2)
        queue.run(part(1, begin, stop))
        queue.run(part(2, stop, len(ops)))
    compute_s = sum(seconds * trace.repeats(op) for op, seconds in zip(ops, op_seconds, strict=True))
    return StepSchedule(
        step_s=queue.now,
        compute_s=compute_s,
        exposed_communication_s=queue.now - compute_s,
        stream_busy_s=tuple(sorted(queue.busy.items())),
    )


@dataclass(frozen=True, slots=True)
class _Stop:
    """Compute until here, then these collectives are issued, then those are waited for."""

    seconds: float
    issued: tuple[int, ...]
    waited: tuple[int, ...]


def _stops(
    done: Sequence[float],
    start: int,
    to: int,
    issued: Iterable[tuple[int, int]],
    waited: Iterable[tuple[int, int]],
) -> tuple[_Stop, ...]:
    """Operators `start` to `to - 1`, cut at the (position, collective) pairs; `done[i]`: seconds before operator i."""
    issues: dict[int, list[int]] = {}
    waits: dict[int, list[int]] = {}
    for position, index in issued:
        issues.setdefault(position, []).append(index)
    for position, index in waited:
        waits.setdefault(position, []).append(index)
    stops: list[_Stop] = []
    before = start
    for position in sorted({*issues, *waits, to}):
        seconds = done[position] - done[before]
        stops.append(_Stop(seconds, tuple(issues.get(position, ())), tuple(waits.get(position, ()))))
        before = position
    return tuple(stops)


class _Queue:
    """The clock, the streams and the collectives under way."""

    def __init__(
        self, records: Sequence[CollectiveRecord], times: Sequence[CollectiveTime], slowdown: float | None
    ) -> None:
        self.now = 0.0
        self.busy = {record.stream: 0.0 for record in records}
        self._records, self._times, self._slowdown = records, times, slowdown
        self._free = dict.fromkeys(self.busy, 0.0)
        self._ends: dict[int, float] = {}  # issued and not waited for
        self._running: list[tuple[float, float, float]] = []  # (start, end, factor on compute)

    def run(self, part: Sequence[_Stop]) -> None:
        for stop in part:
            self._compute(stop.seconds)
            for index in stop.issued:
                self._issue(index)
            for index in stop.waited:
                self.now = max(self.now, self._ends.pop(index, 0.0))

    def repeat(self, part: Sequence[_Stop], times: int) -> None:
        """Run `part` so often; once two runs in a row are alike, the rest is added up."""
        before: tuple[float, ...] = ()
        for number in range(times):
            start, busy = self.now, dict(self.busy)
            self.run(part)
            state = (self.now - start, *(max(0.0, free - self.now) for free in self._free.values()))
            if before and all(
                math.isclose(a, b, rel_tol=_EQUAL, abs_tol=1e-15) for a, b in zip(before, state, strict=True)
            ):
                self._skip(state[0] * (times - number - 1), busy, times - number - 1)
                return
            before = state

    def _skip(self, seconds: float, busy_before: dict[str, float], times: int) -> None:
        self.now += seconds
        for stream, free in self._free.items():
            self._free[stream] = free + seconds
            self.busy[stream] += times * (self.busy[stream] - busy_before[stream])
        self._ends = {index: end + seconds for index, end in self._ends.items()}
        self._running = [(start + seconds, end + seconds, factor) for start, end, factor in self._running]

    def _issue(self, index: int) -> None:
        record, time = self._records[index], self._times[index]
        start = max(self.now, self._free[record.stream])
        if record.after >= 0:
            start = max(start, self._ends.get(record.after, 0.0))
        end = start + time.seconds
        self._free[record.stream] = self._ends[index] = end
        self.busy[record.stream] += time.seconds
        factor = time.overlap_slowdown if self._slowdown is None else self._slowdown
        if factor > 1.0:
            self._running.append((start, end, factor))

    def _compute(self, seconds: float) -> None:
        """Let `seconds` of compute pass, more where a collective runs beside it."""
        while seconds > 0.0:
            self._running = [running for running in self._running if running[1] > self.now]
            factor = max((f for start, _, f in self._running if start <= self.now), default=1.0)
            change = min((start if start > self.now else end for start, end, _ in self._running), default=math.inf)
            if self.now + seconds * factor <= change:
                self.now += seconds * factor
                return
            seconds -= (change - self.now) / factor
            self.now = change
