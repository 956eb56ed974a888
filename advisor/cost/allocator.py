"""A simulation of PyTorch's CUDA caching allocator over the alloc and free events of a trace, one stream.

Rules and sizes: c10/cuda/CUDACachingAllocator.cpp of pytorch/pytorch at commit 001074d2 and
include/c10/core/AllocatorConfig.h of the torch 2.13.0 wheel.

* A request is rounded up to 512 B. Up to 1 MiB it is served by the small pool, from segments of 2 MiB; below 10 MiB by
  the large pool, from segments of 20 MiB; from 10 MiB on it gets a segment of its own, rounded up to 2 MiB.
* A pool hands out the smallest free block that is large enough, the lowest address among equals. The rest of the block
  is split off when it is at least 512 B (small pool, expandable segments) or more than 1 MiB (large pool).
* A freed block merges with free neighbours. Segments go back to the device only when it has no memory left: then every
  segment without a live block does.

* What an operator takes only if it is there (a workspace of cuDNN) never makes a step fail, but the segment it leaves
  behind is cut up by what follows. Choosing an algorithm by trying them gives every unused segment back.
* Later steps find the segments as the one before left them: on a nearly full device they are cut up further until
  nothing whole is left to give back. `repeats` runs the steady step again.

Known limitations: one stream; no `max_split_size_mb`, no `roundup_power2_divisions`, no garbage-collection threshold.
An expandable segment grows at its end and gives no pages back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.trace.records import MemoryEvent

_MIN_BLOCK = 512  # kMinBlockSize
_SMALL = 2**20  # kSmallSize: largest request of the small pool, and the least that is split off in the large one
_SMALL_SEGMENT = 2 * 2**20  # kSmallBuffer
_LARGE_SEGMENT = 20 * 2**20  # kLargeBuffer
_MIN_OWN_SEGMENT = 10 * 2**20  # kMinLargeAlloc
_ROUND_LARGE = 2 * 2**20  # kRoundLarge

# Share of the capacity from which on fragmentation may make a step fail. It took less than 5 % of the capacity from a
# step that ran at first and not later: 132 published steps of timm models between 80 and 104 % of an RTX 3090
# (tests/validation/timm_3090.py, seed 7).
NEARLY_FULL = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """What an operator takes and gives back before the next one, if there is room for it."""

    kernels: tuple[int, ...]  # bytes of each, one after another
    empties_cache: bool = False  # after each


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorResult:
    """What the allocator's counters show. Bytes; event indices count from zero, -1 stands for no events."""

    allocated_peak_bytes: int
    allocated_peak_event: int  # index of the first event after which it is reached
    reserved_peak_bytes: int
    reserved_peak_event: int
    allocated: tuple[int, ...]  # bytes in live blocks after each event
    block_bytes: tuple[int, ...]  # of each storage: its block, 0 where it never had one
    reserved_bytes: int  # at the end
    ran_out: bool = False  # the capacity was exceeded


def sum_live(events: Sequence[MemoryEvent], sizes: Sequence[int]) -> AllocatorResult:
    """The same counters without a caching allocator: bytes are taken as they are asked for and given back at once."""
    allocated: list[int] = []
    total = 0
    for event in events:
        total += sizes[event.storage] if event.is_alloc else -sizes[event.storage]
        allocated.append(total)
    peak = max(allocated, default=0)
    index = allocated.index(peak) if allocated else -1
    return AllocatorResult(
        allocated_peak_bytes=peak,
        allocated_peak_event=index,
        reserved_peak_bytes=peak,
        reserved_peak_event=index,
        allocated=tuple(allocated),
        block_bytes=tuple(sizes),
        reserved_bytes=total,
    )


def simulate(
    events: Sequence[MemoryEvent],
    sizes: Sequence[int],
    *,
    capacity: int | None = None,
    expandable_segments: bool = False,
    steady_from: int = 0,
    repeats: int = 0,
    scratch: Mapping[int, Scratch] | None = None,
) -> AllocatorResult:
    """Run `events` through the allocator; `sizes[storage]` is 0 for what takes no device memory.

    At `capacity` the device has no memory left: unused segments go back to it, and only if that isn't enough the
    capacity is exceeded (a real step would end here). So `capacity=None` gives what `max_memory_reserved` shows on a
    device with plenty, and `capacity=0` the least that a device must have for the step to run.

    Where the events nearly fill the capacity, the steady step, `events[steady_from:]`, runs up to `repeats` more times;
    only the reserved peak and `ran_out` take notice of those.

    Args:
        scratch: by index of the event that it follows.
    """
    allocator = _Allocator(capacity, expandable_segments)
    scratch = scratch or {}
    blocks: dict[int, _Block] = {}
    allocated: list[int] = []
    block_bytes = [0] * len(sizes)
    reserved_peak, reserved_peak_event = 0, -1
    for index, event in enumerate(events):
        storage = event.storage
        if not event.is_alloc:
            if (block := blocks.pop(storage, None)) is not None:
                allocator.free(block)
        elif nbytes := sizes[storage]:
            blocks[storage] = block = allocator.allocate(nbytes)
            block_bytes[storage] = block.size
        allocated.append(allocator.allocated)
        if (taken := scratch.get(index)) is not None:
            allocator.borrow(taken)
        if allocator.reserved > reserved_peak:
            reserved_peak, reserved_peak_event = allocator.reserved, index
    peak = max(allocated, default=0)
    reserved_bytes = allocator.reserved
    nearly_full = capacity is not None and peak >= NEARLY_FULL * capacity
    for _ in range(repeats if nearly_full else 0):
        before = allocator.layout()
        reserved_peak = max(reserved_peak, _run_again(allocator, blocks, events, sizes, steady_from, scratch))
        if allocator.ran_out or allocator.layout() == before:
            break  # the job is over, or every later step is the same
    return AllocatorResult(
        allocated_peak_bytes=peak,
        allocated_peak_event=allocated.index(peak) if allocated else -1,
        reserved_peak_bytes=reserved_peak,
        reserved_peak_event=reserved_peak_event,
        allocated=tuple(allocated),
        block_bytes=tuple(block_bytes),
        reserved_bytes=reserved_bytes,
        ran_out=allocator.ran_out,
    )


def _run_again(
    allocator: _Allocator,
    blocks: dict[int, _Block],
    events: Sequence[MemoryEvent],
    sizes: Sequence[int],
    steady_from: int,
    scratch: Mapping[int, Scratch],
) -> int:
    """One more steady step; returns the most that was reserved. What the last one left behind, this one replaces."""
    highest = 0
    for index in range(steady_from, len(events)):
        storage = events[index].storage
        if not events[index].is_alloc:
            if (block := blocks.pop(storage, None)) is not None:
                allocator.free(block)
        elif nbytes := sizes[storage]:
            left = blocks.get(storage)
            blocks[storage] = allocator.allocate(nbytes)
            if left is not None:
                allocator.free(left)
        if (taken := scratch.get(index)) is not None:
            allocator.borrow(taken)
        highest = max(highest, allocator.reserved)
    return highest


def live_after(events: Sequence[MemoryEvent], index: int) -> tuple[int, ...]:
    """Storages that are live after event `index`, oldest first."""
    live: dict[int, None] = {}
    for event in events[: index + 1]:
        if event.is_alloc:
            live[event.storage] = None
        else:
            live.pop(event.storage, None)
    return tuple(live)


def _segment(size: int) -> int:
    """Bytes of the segment that a rounded request gets."""
    if size <= _SMALL:
        return _SMALL_SEGMENT
    return _LARGE_SEGMENT if size < _MIN_OWN_SEGMENT else -(-size // _ROUND_LARGE) * _ROUND_LARGE


class _Block:
    """A stretch of a segment, linked to its neighbours there."""

    __slots__ = ("address", "is_free", "next", "pool", "previous", "size")

    def __init__(self, pool: _Pool, address: int, size: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.is_free = False
        self.previous: _Block | None = None
        self.next: _Block | None = None


class _Pool:
    """Free blocks by (size, address)."""

    __slots__ = ("end", "free", "is_small", "min_split")

    def __init__(self, *, is_small: bool, min_split: int) -> None:
        self.is_small = is_small
        self.min_split = min_split
        self.free: list[tuple[int, int, _Block]] = []
        self.end: _Block | None = None  # last block of the expandable segment

    def put(self, block: _Block) -> None:
        block.is_free = True
        insort(self.free, (block.size, block.address, block))

    def take(self, block: _Block) -> None:
        block.is_free = False
        del self.free[bisect_left(self.free, (block.size, block.address))]


class _Allocator:
    """Two pools and the counters."""

    def __init__(self, capacity: int | None, expandable: bool) -> None:
        self.capacity = capacity
        self.expandable = expandable
        self.allocated = 0
        self.reserved = 0
        self.ran_out = False
        self._next_address = 0
        self._small = _Pool(is_small=True, min_split=_MIN_BLOCK)
        self._large = _Pool(is_small=False, min_split=_MIN_BLOCK if expandable else _SMALL + 1)

    def layout(self) -> tuple[int, ...]:
        """Sizes of the free blocks: two steps that leave the same ones behind are taken to run alike."""
        return tuple(entry[0] for pool in (self._small, self._large) for entry in pool.free)

    def allocate(self, nbytes: int) -> _Block:
        size = -(-nbytes // _MIN_BLOCK) * _MIN_BLOCK
        pool = self._small if size <= _SMALL else self._large
        free = pool.free
        if (index := bisect_left(free, (size,))) < len(free):
            block = free.pop(index)[2]  # the best fit
            block.is_free = False
        else:
            block = self._grow(pool, size) if self.expandable else self._new_segment(pool, size)
        if block.size - size >= pool.min_split:
            self._split(block, size)
        self.allocated += block.size
        return block

    def borrow(self, scratch: Scratch) -> None:
        """Take and give back what a free block or a segment within the capacity holds."""
        for nbytes in scratch.kernels:
            if self._has_room(nbytes):
                self.free(self.allocate(nbytes))
            if scratch.empties_cache:
                self._release_cached()

    def _has_room(self, nbytes: int) -> bool:
        size = -(-nbytes // _MIN_BLOCK) * _MIN_BLOCK
        pool = self._small if size <= _SMALL else self._large
        if self.capacity is None or bisect_left(pool.free, (size,)) < len(pool.free):
            return True
        if self.reserved + _segment(size) > self.capacity:
            self._release_cached()
        return self.reserved + _segment(size) <= self.capacity

    def free(self, block: _Block) -> None:
        self.allocated -= block.size
        pool = block.pool
        after, before = block.next, block.previous
        if after is not None and after.is_free:
            pool.take(after)
            self._absorb(block, after)
        if before is not None and before.is_free:
            pool.take(before)
            self._absorb(before, block)
            block = before
        pool.put(block)

    @staticmethod
    def _split(block: _Block, size: int) -> None:
        pool, after = block.pool, block.next
        rest = _Block(pool, block.address + size, block.size - size)
        rest.previous, rest.next = block, after
        if after is not None:
            after.previous = rest
        block.next, block.size = rest, size
        if pool.end is block:
            pool.end = rest
        pool.put(rest)

    @staticmethod
    def _absorb(block: _Block, after: _Block) -> None:
        block.size += after.size
        block.next = after.next
        if after.next is not None:
            after.next.previous = block
        if block.pool.end is after:
            block.pool.end = block

    def _new_segment(self, pool: _Pool, size: int) -> _Block:
        segment = _segment(size)
        self._reserve(segment)
        block = _Block(pool, self._next_address, segment)
        self._next_address += segment
        return block

    def _grow(self, pool: _Pool, size: int) -> _Block:
        """The free end of the pool's expandable segment plus as many pages as it lacks."""
        page = _SMALL_SEGMENT if pool.is_small else _LARGE_SEGMENT
        end = pool.end
        if end is not None and end.is_free:
            pool.take(end)
            grown = -(-(size - end.size) // page) * page
            end.size += grown
        else:
            grown = -(-size // page) * page
            # One address range per pool; the pools' ranges never meet, so the large one may start anywhere.
            block = _Block(pool, 0 if end is None else end.address + end.size, grown)
            block.previous = end
            if end is not None:
                end.next = block
            pool.end = end = block
        self._reserve(grown)
        return end

    def _reserve(self, nbytes: int) -> None:
        if self.capacity is not None and self.reserved + nbytes > self.capacity:
            self._release_cached()
            self.ran_out |= self.reserved + nbytes > self.capacity
            self.capacity = max(self.capacity, self.reserved + nbytes)
        self.reserved += nbytes

    def _release_cached(self) -> None:
        """Give segments without a live block back to the device (`release_cached_blocks`)."""
        if self.expandable:
            return
        for pool in (self._small, self._large):
            kept = [entry for entry in pool.free if entry[2].previous is not None or entry[2].next is not None]
            self.reserved -= sum(entry[0] for entry in pool.free) - sum(entry[0] for entry in kept)
            pool.free = kept
