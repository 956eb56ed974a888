"""What one rank must hold: allocated and reserved peak, context, other buffers; where and when the peak is.

    required = reserved - releasable + context + workspace + communication

Reserved comes from the allocator's simulation over the two traced steps on the device, releasable from a second one on
a device that has no byte to spare. Where little room is left, the steady step runs several times more: each cuts up the
segments that the one before it left, so one that ran at first may find no hole that is large enough later. CPU targets
have no caching allocator: bytes count as asked for, and there is no context.

Workspaces. cuBLAS takes one per thread from the caching allocator at its first matmul and keeps it (forward and
backward run in two threads). cuDNN takes a convolution's from the caching allocator too, and falls back to an algorithm
that needs less where there is none left: nothing is required for it, but it cuts up memory. Its size is not known
without the device, so a nearly full step with convolutions is simulated with several (`scratch.py`). It is said not to
fit where two of them run out of memory, and the verdict is undetermined where they do not agree.

Known limitations: one stream; memory that other processes or a display take is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from advisor.cost.allocator import NEARLY_FULL, AllocatorResult, Scratch, live_after, simulate, sum_live
from advisor.cost.classes import MATMUL_CLASSES, classify
from advisor.cost.estimate import FitVerdict, MemoryEstimate, Peak
from advisor.cost.scratch import SCRATCH_SCALES, scratch
from advisor.cost.surroundings import Span, communication, context, memory_band, usable_memory
from advisor.hardware.profile import DeviceProfile
from advisor.trace.records import Category, MemoryEvent, Phase, StepTrace, StorageRecord

K = TypeVar("K")

# aten/src/ATen/cuda/CublasHandlePool.cpp of pytorch/pytorch at 26a39059: 2 x 4096 KiB + 8 x 16 KiB; 32 MiB on compute
# capability 9.0, later versions on 10 and 12 too. rocBLAS 32 MiB (128 MiB on gfx94x and gfx95x) and hipBLASLt 76 MiB.
_CUBLAS_BYTES = 8_519_680
_CUBLAS_BYTES_FROM_9_0 = 32 * 2**20
_ROCBLAS_BYTES = 32 * 2**20
_ROCBLAS_BYTES_GFX94X_95X = 128 * 2**20
_HIPBLASLT_BYTES = 76 * 2**20

# Few layouts are new after the first repetitions; `benchmark.py` of timm, whose table the band is from, ran 50 steps.
_REPEATS = 5

_BACKWARD = frozenset((Phase.BACKWARD, Phase.RECOMPUTE))


def estimate_memory(
    trace: StepTrace, device: DeviceProfile, *, usable_bytes: int | None = None, expandable_segments: bool = False
) -> MemoryEstimate:
    """Memory of one rank that runs `trace` on `device`.

    Args:
        usable_bytes: what the framework reports as total, where it is not the profile's.
        expandable_segments: `PYTORCH_ALLOC_CONF=expandable_segments:True`.

    Raises:
        ProfileError: nothing is known about the device's memory.
    """
    usable = usable_memory(device) if usable_bytes is None else Span(usable_bytes, usable_bytes, "given")
    outside, links = context(device), communication(trace, device)
    trace = _with_blas_workspaces(trace, device)
    sizes = [0 if storage.on_host else storage.nbytes for storage in trace.storages]
    if device.device_type == "cpu":
        result = sum_live(trace.events, sizes)
        lowest = needed = highest = result.reserved_peak_bytes
    else:
        room = max(0, usable.low - outside.high - links.high)
        result, (lowest, needed, highest) = _simulated(trace, sizes, room, expandable_segments=expandable_segments)
    share = memory_band(device)
    low = int(lowest * share.low) + outside.low + links.low
    high = int(highest * share.high) + outside.high + links.high
    enough = int(needed * share.fits) + outside.high + links.high
    peaks = _Peaks(trace, result)
    at = peaks.highest()
    return MemoryEstimate(
        allocated_peak_bytes=result.allocated_peak_bytes,
        reserved_peak_bytes=result.reserved_peak_bytes,
        releasable_bytes=result.reserved_peak_bytes - needed,
        context_bytes=outside.middle,
        workspace_bytes=0,
        communication_bytes=links.middle,
        required_bytes=needed + outside.middle + links.middle,
        low_bytes=low,
        high_bytes=high,
        usable_bytes=usable.low,
        fits=enough <= usable.low,
        verdict=_verdict(low, high, usable.low),
        peak=peaks.describe(at),
        next_peak=peaks.next_to(at),
        first_step_peak=peaks.describe(peaks.highest_of_first_step()),
        by_module=peaks.activations_by_module(at),
        host_bytes=_host_peak(trace),
        sources=_sources(usable, outside, links, share.source, device),
    )


def _simulated(
    trace: StepTrace, sizes: list[int], room: int, *, expandable_segments: bool
) -> tuple[AllocatorResult, tuple[int, int, int]]:
    """What the allocator does in `room` bytes; what must be there: at least, decided on, and at most.

    More than `room` is needed where a step, the first ones or a later one, runs out of memory. They differ where
    workspaces of another size would lead to another end.
    """
    least = simulate(trace.events, sizes, capacity=0, expandable_segments=expandable_segments)
    workspaces: list[dict[int, Scratch]] = []
    if NEARLY_FULL * room <= least.allocated_peak_bytes <= room and not expandable_segments:
        workspaces = [taken for scale in SCRATCH_SCALES if (taken := scratch(trace, scale))]
    runs = [
        simulate(
            trace.events,
            sizes,
            capacity=room,
            expandable_segments=expandable_segments,
            steady_from=sum(event.position < trace.steady_start for event in trace.events),
            repeats=_REPEATS,
            scratch=taken,
        )
        for taken in ({}, *workspaces)
    ]

    def needed(run: AllocatorResult) -> int:
        return run.reserved_peak_bytes if run.ran_out else min(run.reserved_peak_bytes, least.reserved_peak_bytes)

    runs.sort(key=needed)
    deciding = runs[-2] if len(runs) > 1 else runs[0]
    return deciding, (needed(runs[0]), needed(deciding), needed(runs[-1]))


def _verdict(low: int, high: int, usable: int) -> FitVerdict:
    if high <= usable:
        return FitVerdict.FITS
    return FitVerdict.DOES_NOT_FIT if low > usable else FitVerdict.UNDETERMINED


def _sources(usable: Span, outside: Span, links: Span, band: str, device: DeviceProfile) -> tuple[str, ...]:
    lines = [f"usable memory: {usable.source}", f"context: {outside.source}", f"band: {band}"]
    if links.high:
        lines.append(f"communication: {links.source}")
    if device.device_type not in ("cuda", "rocm", "cpu"):
        lines.append(f"assumed: the allocator of {device.device_type} works as CUDA's")
    return tuple(lines)


# ---- workspaces ----------------------------------------------------------------------------------------------------


def _with_blas_workspaces(trace: StepTrace, device: DeviceProfile) -> StepTrace:
    """`trace` with a workspace taken at the first matmul of forward and at the first of backward."""
    if not (nbytes := _blas_bytes(device)):
        return trace
    first: dict[bool, int] = {}
    for position, op in enumerate(trace.ops[: trace.steady_start]):
        thread = op.phase in _BACKWARD
        if thread not in first and classify(op) in MATMUL_CLASSES:
            first[thread] = position
    storages, events = list(trace.storages), list(trace.events)
    for position in first.values():
        storages.append(StorageRecord(nbytes, Category.WORKSPACE, "", persistent=True))
        events.append(MemoryEvent(position, len(storages) - 1, is_alloc=True))
    # The sort is stable: the workspace comes after the operator's own outputs.
    events.sort(key=lambda event: event.position)
    return replace(trace, storages=tuple(storages), events=tuple(events))


def _blas_bytes(device: DeviceProfile) -> int:
    if device.device_type == "cuda":
        capability = device.compute_capability
        return _CUBLAS_BYTES_FROM_9_0 if capability is None or capability >= (9, 0) else _CUBLAS_BYTES
    if device.device_type == "rocm":
        newer = device.architecture.startswith(("CDNA3", "CDNA4"))  # gfx94x and gfx95x
        return (_ROCBLAS_BYTES_GFX94X_95X if newer else _ROCBLAS_BYTES) + _HIPBLASLT_BYTES
    return 0


def _host_peak(trace: StepTrace) -> int:
    sizes = [storage.nbytes if storage.on_host else 0 for storage in trace.storages]
    return sum_live(trace.events, sizes).allocated_peak_bytes


# ---- peaks ---------------------------------------------------------------------------------------------------------


class _Peaks:
    """The timeline of allocated bytes, read for its peaks."""

    def __init__(self, trace: StepTrace, result: AllocatorResult) -> None:
        self.trace = trace
        self.result = result
        self.steady_from = sum(event.position < trace.steady_start for event in trace.events)
        self._chains = {name: index for index, chain in enumerate(trace.block_chains) for name in chain.names}

    def highest(self) -> int:
        """Event after which most is allocated; of equals one of the steady step."""
        first, steady = self.highest_of_first_step(), self._highest(self.steady_from, len(self.trace.events))
        if steady < 0 or (first >= 0 and self._bytes(first) > self._bytes(steady)):
            return first
        return steady

    def highest_of_first_step(self) -> int:
        return self._highest(0, self.steady_from)

    def _highest(self, start: int, end: int) -> int:
        return max(range(start, end), key=self._bytes, default=-1)

    def _bytes(self, event: int) -> int:
        return self.result.allocated[event]

    def describe(self, event: int) -> Peak:
        phase, operator, module = self._where(event)
        return Peak(
            allocated_bytes=self._bytes(event) if event >= 0 else 0,
            phase=phase,
            operator=operator,
            module=module,
            first_step=0 <= event < self.steady_from,
            by_category=_descending(self._live(event, lambda storage: storage.category)),
        )

    def next_to(self, highest: int) -> Peak | None:
        """The highest local maximum of the same step in another phase or module; the blocks of a chain count as one."""
        in_first = highest < self.steady_from
        start, end = (0, self.steady_from) if in_first else (self.steady_from, len(self.trace.events))
        events = self.trace.events
        here = self._place(highest)
        candidates = [
            index
            for index in range(start, end)
            if events[index].is_alloc
            and (index + 1 == end or not events[index + 1].is_alloc)
            and self._place(index) != here
        ]
        best = max(candidates, key=self._bytes, default=-1)
        return self.describe(best) if best >= 0 else None

    def activations_by_module(self, event: int) -> tuple[tuple[str, int], ...]:
        live = self._live(event, lambda storage: storage.module if storage.category is Category.ACTIVATION else None)
        return _descending(live)

    def _live(self, event: int, key: Callable[[StorageRecord], K | None]) -> Counter[K]:
        held: Counter[K] = Counter()
        for storage in live_after(self.trace.events, event):
            if (name := key(self.trace.storages[storage])) is not None:
                held[name] += self.result.block_bytes[storage]
        return held

    def _place(self, event: int) -> tuple[Phase, str | int]:
        phase, _, module = self._where(event)
        prefix = module
        while prefix:
            if prefix in self._chains:
                return phase, self._chains[prefix]
            prefix = prefix.rpartition(".")[0]
        return phase, module

    def _where(self, event: int) -> tuple[Phase, str, str]:
        ops = self.trace.ops
        if event < 0 or not ops:
            return Phase.FORWARD, "", ""
        op = ops[min(self.trace.events[event].position, len(ops) - 1)]
        return op.phase, op.name, op.module


def _descending(held: Counter[K]) -> tuple[tuple[K, int], ...]:
    return tuple((key, nbytes) for key, nbytes in held.most_common() if nbytes)
