"""What replay knows of a block that ran, and how its records are written down for another one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from advisor.trace._recorder import Recorder
from advisor.trace.records import MemoryEvent, OpRecord, TensorRef


@dataclass(slots=True)
class Segment:
    """What one block did in one direction: a slice of the recorder's lists."""

    first_op: int
    last_op: int  # one past
    first_event: int
    last_event: int  # one past


@dataclass(slots=True)
class Call:
    """One call of one block in one pass."""

    position: int
    name: str
    inputs: list[int]  # storages of the tensors that come in
    outputs: list[int]
    needs_gradient: list[bool] = field(default_factory=list)  # which inputs do
    sequence: tuple[int, int] = (0, 0)  # autograd nodes made inside
    forward: Segment | None = None
    roles: list[int] = field(default_factory=list)  # storages taken in forward, by order
    incoming: list[int] = field(default_factory=list)  # storages of the gradients of the outputs
    replayed: bool = False


@dataclass(slots=True)
class Pass:
    """One forward and backward through a chain."""

    calls: list[Call] = field(default_factory=list)
    backward: Segment | None = None  # of block n-2
    outgoing: list[int | None] = field(default_factory=list)  # block n-2: storages of the gradients of its inputs
    mirrored: dict[int, list[int]] = field(default_factory=dict)  # storage of a template -> the same in replayed blocks


class Template:
    """Shapes of one block's arguments and outputs, without holding the tensors."""

    def __init__(self, args: Any, kwargs: Any, output: Any) -> None:
        self._arguments = _description((args, kwargs))
        leaves, self._spec = pytree.tree_flatten(output)
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        self.outputs = [
            (tuple(t.shape), t.stride(), t.dtype, t.requires_grad) for t in leaves if isinstance(t, torch.Tensor)
        ]

    def matches(self, args: Any, kwargs: Any) -> bool:
        return _description((args, kwargs)) == self._arguments

    def rebuild(self, tensors: list[torch.Tensor]) -> Any:
        """The block's output with `tensors` in it."""
        remaining = iter(tensors)
        leaves = [
            next(remaining) if tensor else leaf for tensor, leaf in zip(self._is_tensor, self._leaves, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self._spec)


def _description(arguments: Any) -> tuple[object, ...]:
    leaves, spec = pytree.tree_flatten(arguments)
    return (
        spec,
        *(
            (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.requires_grad)
            if isinstance(leaf, torch.Tensor)
            else leaf
            if isinstance(leaf, (bool, int, float, str, type(None)))
            else id(leaf)
            for leaf in leaves
        ),
    )


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Copy:
    """Writes the records of a template's segment down for another block.

    Args:
        template: name of the module that ran.
        name: name of the module that did not.
    """

    def __init__(self, recorder: Recorder, *, template: str, name: str) -> None:
        self._recorder = recorder
        self._template, self._name = template, name
        self._storages: dict[int, int] = {}  # of the template -> of the copy
        self._taken: list[int] = []

    def map(self, theirs: int, mine: int) -> None:
        self._storages[theirs] = mine

    def storage(self, theirs: int) -> int:
        """What stands for a storage of the template; one that is not the template's own stands for itself."""
        return self._storages.get(theirs, theirs)

    def write(self, segment: Segment) -> list[int]:
        """Append the segment's records; returns the storages taken, in order."""
        recorder = self._recorder
        event = segment.first_event
        for index in range(segment.first_op, segment.last_op):
            event = self._write_events(event, recorder.events_before[index])
            before = len(recorder.events)
            # An operator's own allocations come before it is recorded itself, and what it frees after.
            end = recorder.events_before[index + 1] if index + 1 < segment.last_op else segment.last_event
            while event < end and recorder.events[event].position == index:
                self._write_event(recorder.events[event])
                event += 1
            self._write_op(recorder.ops[index], before)
        self._write_events(event, segment.last_event)
        return self._taken

    def matches(self, segment: Segment, other: Segment) -> bool:
        """Whether `other` holds the operators, and takes the memory, that `segment` says."""
        ops = self._recorder.ops
        first, second = ops[segment.first_op : segment.last_op], ops[other.first_op : other.last_op]
        taken, also_taken = self._allocations(segment), self._allocations(other)
        if len(first) != len(second) or [n for _, n in taken] != [n for _, n in also_taken]:
            return False
        for (theirs, _), (mine, _) in zip(taken, also_taken, strict=True):
            self.map(theirs, mine)
        return all(self._copied(op) == mine for op, mine in zip(first, second, strict=True))

    def _allocations(self, segment: Segment) -> list[tuple[int, int]]:
        """(storage, its bytes) of what is taken in a segment."""
        recorder = self._recorder
        events = recorder.events[segment.first_event : segment.last_event]
        taken = [event.storage for event in events if event.is_alloc]
        return [(i, recorder.storages[i].nbytes) for i in taken if not recorder.storages[i].from_outside]

    def _write_events(self, start: int, stop: int) -> int:
        for event in self._recorder.events[start:stop]:
            self._write_event(event)
        return stop

    def _write_event(self, event: MemoryEvent) -> None:
        recorder = self._recorder
        source = recorder.storages[event.storage]
        if not event.is_alloc:
            mine = self.storage(event.storage)
            recorder.free(mine)
            recorder.storages[mine].freed_in = source.freed_in
            return
        if source.from_outside:  # stands for itself
            return
        mine = recorder.new_storage(source.nbytes, module=self._renamed(source.module))
        recorder.storages[mine].phase = source.phase
        recorder.storages[mine].on_host = source.on_host
        self._storages[event.storage] = mine
        self._taken.append(mine)

    def _write_op(self, op: OpRecord, events_before: int) -> None:
        self._recorder.append(self._copied(op), events_before=events_before)

    def _copied(self, op: OpRecord) -> OpRecord:
        return replace(
            op,
            module=self._renamed(op.module),
            inputs=self._references(op.inputs),
            outputs=self._references(op.outputs),
        )

    def _references(self, refs: tuple[TensorRef, ...]) -> tuple[TensorRef, ...]:
        known = self._storages
        return tuple(
            ref if (mine := known.get(ref.storage)) is None else TensorRef(mine, ref.shape, ref.dtype, ref.strides)
            for ref in refs
        )

    def _renamed(self, module: str) -> str:
        if module == self._template or module.startswith(self._template + "."):
            return self._name + module[len(self._template) :]
        return module
