"""`TraceEditor`: changes to a trace, said in its old positions and made in one sweep."""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.trace.records import CollectiveRecord, MemoryEvent, OpRecord, StepTrace, StorageRecord


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the new trace: after `num_inserted` of the operators put in before old operator `position`."""

    position: int
    num_inserted: int = 0


@dataclass(slots=True)
class _Collective:
    record: CollectiveRecord  # its positions are not filled in
    issue: Mark
    wait: Mark | None = None


@dataclass(frozen=True, slots=True)
class _Life:
    storage: int
    is_alloc: bool


class TraceEditor:
    """Puts operators, lives and collectives into a trace, resizes storages, takes operators out.

    What is put in at a position comes before the old operator there, in the order of the calls: after what the operator
    before it gave back, before what the old operator takes.

    Known limitation: operators keep the storage numbers of their tensors; only shapes and sizes are rewritten.
    """

    def __init__(self, trace: StepTrace) -> None:
        self.trace = trace
        self.storages = list(trace.storages)
        self.alloc_position = [-1] * len(self.storages)
        for event in trace.events:
            if event.is_alloc:
                self.alloc_position[event.storage] = event.position
        self._inserted: dict[int, list[OpRecord | _Life]] = {}
        self._replaced: dict[int, OpRecord | None] = {}
        self._moved_allocs: set[int] = set()  # storages whose old events no longer hold
        self._moved_frees: set[int] = set()
        self._collectives: list[_Collective] = []

    # ---- storages and their lives --------------------------------------------------------------------------------

    def add_storage(self, record: StorageRecord) -> int:
        self.storages.append(record)
        self.alloc_position.append(-1)
        return len(self.storages) - 1

    def resize(self, storage: int, nbytes: int) -> None:
        old = self.storages[storage]  # spelt out: `replace` is ten times slower, and this runs for every parameter
        self.storages[storage] = StorageRecord(
            nbytes, old.category, old.module, old.persistent, old.on_host, old.parameter
        )

    def alloc(self, storage: int, position: int) -> None:
        """Let `storage` be taken at `position`, not where it was before."""
        self._moved_allocs.add(storage)
        self._inserted.setdefault(position, []).append(_Life(storage, True))

    def free(self, storage: int, position: int) -> None:
        """Let `storage` be given back at `position`, not where it was before."""
        self._moved_frees.add(storage)
        self._inserted.setdefault(position, []).append(_Life(storage, False))

    def forget(self, storage: int) -> None:
        """Let `storage` never be taken."""
        self._moved_allocs.add(storage)
        self._moved_frees.add(storage)

    # ---- operators -----------------------------------------------------------------------------------------------

    def insert(self, op: OpRecord, position: int) -> None:
        self._inserted.setdefault(position, []).append(op)

    def replace(self, position: int, op: OpRecord) -> None:
        self._replaced[position] = op

    def drop(self, position: int) -> None:
        self._replaced[position] = None

    # ---- collectives ---------------------------------------------------------------------------------------------

    def mark(self, position: int) -> Mark:
        """Here: after what has been put in at `position` so far."""
        return Mark(position, sum(isinstance(item, OpRecord) for item in self._inserted.get(position, ())))

    def issue(
        self,
        kind: str,
        payload_bytes: int,
        *,
        at: Mark,
        axis: str,
        microbatch: int,
        unit: str,
        stream: str = "",
        after: int = -1,
    ) -> int:
        """A collective that may start at `at`; its result is needed at the end of the step until `wait` says where."""
        record = CollectiveRecord(
            kind=kind,
            payload_bytes=payload_bytes,
            axis=axis,
            issue_position=-1,
            wait_position=-1,
            stream=stream or axis,
            microbatch=microbatch,
            unit=unit,
            after=after,
        )
        self._collectives.append(_Collective(record, at))
        return len(self._collectives) - 1

    def wait(self, collective: int, at: Mark) -> None:
        self._collectives[collective].wait = at

    # ---- the new trace -------------------------------------------------------------------------------------------

    def finish(self, *, notes: tuple[str, ...] = ()) -> StepTrace:
        """The trace with every change made."""
        ops: list[OpRecord] = []
        events: list[MemoryEvent] = []
        starts: list[int] = []  # starts[p]: index of the first operator, old or put in, at old position p
        old_ops, old_events = self.trace.ops, self.trace.events
        moved = {True: self._moved_allocs, False: self._moved_frees}
        cursor, num_events = 0, len(old_events)
        for position in range(len(old_ops) + 1):
            starts.append(len(ops))
            inserted = self._inserted.get(position)
            while cursor < num_events and (event := old_events[cursor]).position == position:
                if inserted and event.is_alloc:
                    _put_in(inserted, ops, events)
                    inserted = None
                if event.storage not in moved[event.is_alloc]:
                    now = len(ops)
                    events.append(event if position == now else MemoryEvent(now, event.storage, event.is_alloc))
                cursor += 1
            if inserted:
                _put_in(inserted, ops, events)
            if position < len(old_ops) and (op := self._replaced.get(position, old_ops[position])) is not None:
                ops.append(op)
        return replace(
            self.trace,
            ops=tuple(ops),
            steady_start=starts[self.trace.steady_start],
            storages=tuple(self.storages),
            events=tuple(events),
            collectives=tuple(self._resolve(collective, starts) for collective in self._collectives),
            notes=self.trace.notes + notes,
        )

    def _resolve(self, collective: _Collective, starts: list[int]) -> CollectiveRecord:
        issue, wait = collective.issue, collective.wait or Mark(len(starts) - 1)
        return replace(
            collective.record,
            issue_position=starts[issue.position] + issue.num_inserted,
            wait_position=starts[wait.position] + wait.num_inserted,
        )


def _put_in(inserted: list[OpRecord | _Life], ops: list[OpRecord], events: list[MemoryEvent]) -> None:
    for item in inserted:
        if isinstance(item, OpRecord):
            ops.append(item)
        else:
            events.append(MemoryEvent(len(ops), item.storage, item.is_alloc))
