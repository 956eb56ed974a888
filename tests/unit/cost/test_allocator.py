from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.cost.allocator import Scratch, live_after, simulate, sum_live
from advisor.trace.records import MemoryEvent

MIB = 2**20


def alloc(*storages: int) -> list[MemoryEvent]:
    return [MemoryEvent(0, storage, is_alloc=True) for storage in storages]


def free(*storages: int) -> list[MemoryEvent]:
    return [MemoryEvent(0, storage, is_alloc=False) for storage in storages]


@pytest.mark.parametrize(
    "nbytes, allocated, reserved",
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest request of the small pool
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # a segment of its own
        (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),  # more than 1 MiB is left over: split off
        (11 * MIB, 12 * MIB, 12 * MIB),  # no more than 1 MiB is left over: the block keeps it
    ],
)
def test_one_request(nbytes: int, allocated: int, reserved: int) -> None:
    result = simulate(alloc(0), [nbytes])
    assert (result.allocated_peak_bytes, result.reserved_peak_bytes) == (allocated, reserved)


def test_requests_share_a_segment() -> None:
    result = simulate(alloc(0, 1, 2), [MIB, MIB, MIB])
    assert result.reserved_peak_bytes == 4 * MIB
    result = simulate(alloc(0, 1, 2), [6 * MIB, 6 * MIB, 6 * MIB])
    assert result.reserved_peak_bytes == 20 * MIB
    assert result.allocated == (6 * MIB, 12 * MIB, 18 * MIB)


def test_best_fit_takes_the_smallest_block_that_is_large_enough() -> None:
    sizes = [40 * MIB, 20 * MIB, 15 * MIB, 30 * MIB]
    result = simulate(alloc(0, 1) + free(0, 1) + alloc(2, 3), sizes)
    assert result.reserved_peak_bytes == 60 * MIB  # 15 goes into 20, 30 into 40


def test_freed_neighbours_merge() -> None:
    sizes = [6 * MIB, 6 * MIB, 8 * MIB, 20 * MIB - 512]
    result = simulate(alloc(0, 1, 2) + free(0, 2, 1) + alloc(3), sizes)
    assert result.reserved_peak_bytes == 20 * MIB


def test_a_hole_that_is_too_small_needs_another_segment() -> None:
    sizes = [12 * MIB, 14 * MIB]
    assert simulate(alloc(0) + free(0) + alloc(1), sizes).reserved_peak_bytes == 26 * MIB


def test_unused_segments_go_back_when_the_device_is_full() -> None:
    sizes, events = [12 * MIB, 14 * MIB], alloc(0) + free(0) + alloc(1)
    assert simulate(events, sizes, capacity=20 * MIB).reserved_peak_bytes == 14 * MIB
    assert simulate(events, sizes, capacity=0).reserved_peak_bytes == 14 * MIB


def test_a_segment_in_use_stays() -> None:
    sizes = [6 * MIB, 2 * MIB, 30 * MIB]
    result = simulate(alloc(0, 1) + free(0) + alloc(2), sizes, capacity=0)
    assert result.reserved_peak_bytes == 50 * MIB


def test_expandable_segments_grow_at_their_end() -> None:
    sizes = [30 * MIB, 50 * MIB, 60 * MIB]
    events = alloc(0) + free(0) + alloc(1) + free(1) + alloc(2)
    assert simulate(events, sizes).reserved_peak_bytes == 140 * MIB
    assert simulate(events, sizes, expandable_segments=True).reserved_peak_bytes == 60 * MIB


def test_later_steps_cut_up_the_segments_that_the_first_left() -> None:
    # 20 and 30 MiB get segments; 6 MiB goes into the freed 20 and stays there until the next step replaces it. Then 20
    # is taken out of 30, and 30 needs a segment of its own.
    sizes = [20 * MIB, 30 * MIB, 6 * MIB]
    step = alloc(0, 1) + free(0) + alloc(2) + free(1)
    once = simulate(step, sizes, capacity=58 * MIB)
    assert (once.reserved_peak_bytes, once.ran_out) == (50 * MIB, False)
    again = simulate(step, sizes, capacity=58 * MIB, repeats=1)
    assert (again.reserved_peak_bytes, again.ran_out) == (80 * MIB, True)
    assert (again.allocated, again.reserved_peak_event) == (once.allocated, once.reserved_peak_event)


def test_only_the_steady_step_runs_again() -> None:
    sizes = [12 * MIB, 14 * MIB]
    events = alloc(0, 1) + free(1)
    assert simulate(events, sizes, capacity=30 * MIB, steady_from=1, repeats=3).reserved_peak_bytes == 26 * MIB
    # The next step makes its own 12 out of the cached 14, so 14 needs another segment: the last one's 12 goes back.
    assert simulate(events, sizes, capacity=30 * MIB, repeats=1).reserved_peak_bytes == 28 * MIB
    assert simulate(events, sizes, capacity=27 * MIB, repeats=1).ran_out


def test_a_device_with_room_to_spare_is_not_asked_again() -> None:
    sizes = [20 * MIB, 30 * MIB, 6 * MIB]
    step = alloc(0, 1) + free(0) + alloc(2) + free(1)
    assert simulate(step, sizes, capacity=100 * MIB, repeats=5).reserved_peak_bytes == 50 * MIB


def test_a_full_device_with_a_segment_to_spare_did_not_run_out() -> None:
    sizes, events = [12 * MIB, 14 * MIB], alloc(0) + free(0) + alloc(1)
    assert not simulate(events, sizes, capacity=14 * MIB).ran_out
    assert simulate(events, sizes, capacity=13 * MIB).ran_out


def test_scratch_is_taken_where_there_is_room_and_leaves_its_segment_behind() -> None:
    sizes, events, scratch = [20 * MIB, 20 * MIB], alloc(0, 1), {0: Scratch(kernels=(30 * MIB, 30 * MIB))}
    # 30 MiB once: the second kernel and then the other storage find the segment that the first left
    assert simulate(events, sizes, capacity=50 * MIB, scratch=scratch).reserved_peak_bytes == 50 * MIB
    # no room for 30 beside 20: nothing is taken, and nothing fails
    tight = simulate(events, sizes, capacity=49 * MIB, scratch=scratch)
    assert (tight.reserved_peak_bytes, tight.ran_out) == (40 * MIB, False)
    assert tight.allocated == (20 * MIB, 40 * MIB)


def test_scratch_can_make_a_later_request_fail() -> None:
    # 24 MiB goes into the 30 that the scratch left, so only the segment of 20 can go back when 40 is asked for
    sizes, events = [20 * MIB, 24 * MIB, 40 * MIB], alloc(0) + free(0) + alloc(1, 2)
    alone = simulate(events, sizes, capacity=64 * MIB)
    assert (alone.reserved_peak_bytes, alone.ran_out) == (64 * MIB, False)
    beside = simulate(events, sizes, capacity=64 * MIB, scratch={1: Scratch(kernels=(30 * MIB,))})
    assert (beside.reserved_peak_bytes, beside.ran_out) == (70 * MIB, True)


def test_trying_algorithms_empties_the_cache() -> None:
    sizes, events = [20 * MIB, 24 * MIB], alloc(0) + free(0) + alloc(1)
    kept, emptied = (
        simulate(events, sizes, scratch={1: Scratch(kernels=(30 * MIB,), empties_cache=empties)})
        for empties in (False, True)
    )
    assert (kept.reserved_bytes, emptied.reserved_bytes) == (50 * MIB, 24 * MIB)


def test_scratch_is_borrowed_in_later_steps_too() -> None:
    sizes, events = [20 * MIB, 30 * MIB], alloc(0, 1) + free(0, 1)
    result = simulate(events, sizes, capacity=58 * MIB, repeats=1, scratch={0: Scratch(kernels=(8 * MIB,))})
    assert (result.reserved_peak_bytes, result.ran_out) == (50 * MIB, False)


def test_storages_without_device_memory_are_skipped() -> None:
    result = simulate(alloc(0, 1) + free(0), [0, 512])
    assert result.block_bytes == (0, 512)
    assert result.allocated == (0, 512, 512)


def test_no_events() -> None:
    result = simulate([], [])
    assert (result.allocated_peak_bytes, result.reserved_peak_event) == (0, -1)


def test_live_after_keeps_the_order() -> None:
    events = alloc(2, 0, 1) + free(0)
    assert live_after(events, 2) == (2, 0, 1)
    assert live_after(events, 3) == (2, 1)


def test_without_a_caching_allocator_bytes_are_as_asked_for() -> None:
    result = sum_live(alloc(0, 1) + free(0), [100, 7])
    assert (result.allocated_peak_bytes, result.reserved_peak_bytes, result.allocated) == (107, 107, (100, 107, 7))


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[MemoryEvent], list[int]]:
    sizes = draw(st.lists(st.one_of(st.integers(1, 2 * MIB), st.integers(1, 64 * MIB)), min_size=1, max_size=40))
    events: list[MemoryEvent] = []
    live: list[int] = []
    for storage in range(len(sizes)):
        events += alloc(storage)
        live.append(storage)
        while live and draw(st.booleans()):
            events += free(live.pop(draw(st.integers(0, len(live) - 1))))
    return events, sizes


@given(programs(), st.booleans())
def test_reserved_covers_allocated_and_allocated_covers_the_requests(
    program: tuple[list[MemoryEvent], list[int]], expandable: bool
) -> None:
    events, sizes = program
    asked = sum_live(events, sizes)
    result = simulate(events, sizes, expandable_segments=expandable)
    assert asked.allocated_peak_bytes <= result.allocated_peak_bytes <= result.reserved_peak_bytes
    assert all(block % 512 == 0 and block >= size for block, size in zip(result.block_bytes, sizes, strict=True))


@given(programs(), st.booleans())
def test_freeing_everything_leaves_nothing_allocated(
    program: tuple[list[MemoryEvent], list[int]], expandable: bool
) -> None:
    events, sizes = program
    live = live_after(events, len(events) - 1)
    result = simulate(events + free(*live), sizes, expandable_segments=expandable)
    assert result.allocated[-1] == 0


@given(programs())
def test_giving_segments_back_never_takes_more_than_allocated_and_holes(
    program: tuple[list[MemoryEvent], list[int]],
) -> None:
    events, sizes = program
    least = simulate(events, sizes, capacity=0)
    assert least.allocated_peak_bytes <= least.reserved_peak_bytes
    assert simulate(events, sizes, capacity=10**12) == simulate(events, sizes)


def test_fifty_thousand_events_take_well_under_half_a_second() -> None:
    chance = random.Random(0)
    sizes = [int(2 ** chance.uniform(6, 26)) for _ in range(25_000)]
    events: list[MemoryEvent] = []
    live: list[int] = []
    for storage in range(len(sizes)):
        events += alloc(storage)
        live.append(storage)
        if len(live) > 800:
            events += free(live.pop(chance.randrange(len(live))))
    events += free(*live)
    start = time.process_time()
    result = simulate(events, sizes)
    assert time.process_time() - start < 0.5
    assert result.allocated[-1] == 0
