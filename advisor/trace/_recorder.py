"""`Recorder`: the dispatch mode that writes down every operator, storage and life. Torch in, records out."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.trace import _cudnn_rnn, flops
from advisor.trace._operators import OpInfo, describe
from advisor.trace._results import Results
from advisor.trace.records import (
    Category,
    MemoryEvent,
    OpRecord,
    Phase,
    StorageRecord,
    TensorRef,
)

ACCUMULATE_GRAD = (1 << 64) - 1  # sequence number of every AccumulateGrad node

LATE_STEP = 1000.0  # what a step count reads as: far enough for RAdam to rectify, and 1 - beta ** count is not zero


@dataclass(slots=True)
class Storage:
    """A storage while the step runs."""

    nbytes: int
    phase: Phase
    module: str
    category: Category | None = None  # set for what is known beforehand; the rest follows from its life
    parameter: int = -1
    on_host: bool = False
    freed_in: Phase | None = None
    alive: bool = True
    ignore_death: bool = False  # a replayed block decides when it dies
    from_outside: bool = False  # met in the step, and made before it


class _Reference(weakref.ref[torch.UntypedStorage]):
    """Weak reference to a storage that knows which one it was."""

    __slots__ = ("index", "key")
    index: int
    key: int


def sequence_number() -> int:
    """Number that the next autograd node takes."""
    return torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operators on fake tensors, the bytes they take and when those are given back.

    `paused` lets the tracer create tensors that the user's step would not. Storages are followed by weak references, so
    views and in-place operators need no special treatment.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results = Results(mode)
        self.ops: list[OpRecord] = []
        self.events: list[MemoryEvent] = []
        self.storages: list[Storage] = []
        self.events_before: list[int] = []  # events_before[i]: events when operator i began
        self.phase = Phase.FORWARD
        self.microbatch = 0
        self.paused = False
        self.modules: list[str] = []  # stack of running modules
        self.current_sequence: int | None = None
        self.op_sequences: list[int | None] = []  # autograd node of each backward operator
        self.on_free: Callable[[int], None] | None = None
        self.offloading = False  # saved activations go to the host
        self.host_allocations = False  # tensors made now live in host memory
        self._live: dict[int, _Reference] = {}
        self._infos: dict[Any, OpInfo] = {}
        self._dtypes: dict[torch.dtype, str] = {}
        self._sequence_bounds: list[int] = [0]
        self._sequence_modules: list[str] = [""]
        self.parameter_modules: dict[int, str] = {}  # id(parameter) -> module

    # ---- modules and phases ------------------------------------------------------------------------------------

    def enter_module(self, name: str) -> None:
        self.modules.append(name)
        self._mark_sequence(name)

    def leave_module(self) -> None:
        if self.modules:
            self.modules.pop()
        self._mark_sequence(self.modules[-1] if self.modules else "")

    def _mark_sequence(self, name: str) -> None:
        number = sequence_number()
        if number == self._sequence_bounds[-1]:
            self._sequence_modules[-1] = name
        else:
            self._sequence_bounds.append(number)
            self._sequence_modules.append(name)

    def start_phase(self, phase: Phase, microbatch: int) -> None:
        self.phase, self.microbatch = phase, microbatch
        self.current_sequence = None
        self.modules.clear()

    def _memory_phase(self) -> Phase:
        """Phase whose memory is taken or given back now; modules run in backward only to recompute."""
        return Phase.RECOMPUTE if self.phase is Phase.BACKWARD and self.modules else self.phase

    def _where(self) -> tuple[Phase, str]:
        if self.phase is not Phase.BACKWARD:
            return self.phase, self.modules[-1] if self.modules else ""
        node: Any = torch._C._current_autograd_node()
        if node is not None:
            # Sums of gradients run between two nodes: they belong to the one before.
            self.current_sequence = node._sequence_nr()
            if self.current_sequence == ACCUMULATE_GRAD:
                return Phase.BACKWARD, self.parameter_modules.get(id(node.variable), "")
        if self.modules:
            return Phase.RECOMPUTE, self.modules[-1]
        if self.current_sequence is None or self.current_sequence == ACCUMULATE_GRAD:
            return Phase.BACKWARD, ""
        index = bisect.bisect_right(self._sequence_bounds, self.current_sequence) - 1
        return Phase.BACKWARD, self._sequence_modules[index]

    # ---- storages ----------------------------------------------------------------------------------------------

    def storage_of(self, tensor: torch.Tensor, *, category: Category | None = None) -> int:
        """Index of the tensor's storage; a storage never met before was made outside the step."""
        storage = tensor.untyped_storage()
        if (known := self._live.get(storage._cdata)) is not None:
            return known.index
        index = self.register(storage, category=category)
        self.storages[index].from_outside = True
        return index

    def register(
        self, storage: torch.UntypedStorage, *, category: Category | None = None, module: str = "", parameter: int = -1
    ) -> int:
        """Start following a storage that was just taken."""
        index = self.new_storage(storage.nbytes(), category=category, module=module, parameter=parameter)
        self.attach(storage, index)
        return index

    def new_storage(
        self, nbytes: int, *, category: Category | None = None, module: str = "", parameter: int = -1
    ) -> int:
        """A storage taken now, without a tensor behind it."""
        index = len(self.storages)
        self.storages.append(
            Storage(nbytes, self._memory_phase(), module, category, parameter, on_host=self.host_allocations)
        )
        self.events.append(MemoryEvent(len(self.ops), index, True))
        return index

    def attach(self, storage: torch.UntypedStorage, index: int) -> None:
        """Let `index` die when this storage does."""
        reference = _Reference(storage, self._died)
        reference.index, reference.key = index, storage._cdata
        self._live[storage._cdata] = reference

    def _died(self, reference: weakref.ref[torch.UntypedStorage]) -> None:
        assert isinstance(reference, _Reference)
        if self._live.get(reference.key) is reference:
            del self._live[reference.key]
        if not self.storages[reference.index].ignore_death:
            self.free(reference.index)

    def free(self, index: int) -> None:
        storage = self.storages[index]
        if not storage.alive:
            return
        storage.alive = False
        storage.freed_in = self._memory_phase()
        self.events.append(MemoryEvent(len(self.ops), index, False))
        if self.on_free is not None:
            self.on_free(index)

    def reference(self, tensor: torch.Tensor) -> TensorRef:
        dtype = self._dtypes.get(tensor.dtype)
        if dtype is None:
            dtype = self._dtypes[tensor.dtype] = str(tensor.dtype).removeprefix("torch.")
        return TensorRef(self.storage_of(tensor), tuple(tensor.shape), dtype, tensor.stride())

    # ---- operators ---------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked more often than everything else together
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        info = self._infos.get(func)
        if info is None:
            info = self._infos[func] = describe(func)
        if info.silent and not args:
            return func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default and self.phase is Phase.OPTIMIZER:
            return LATE_STEP  # Adam's step count: a CPU scalar, its value changes no shape
        before = len(self.events)
        phase, module = self._where()
        result = self._execute(func, info, args, kwargs)
        self._write_down(info, phase, module, before, args, kwargs, result)
        return result

    def _execute(self, func: Any, info: OpInfo, args: Any, kwargs: Any) -> Any:
        if info.foreach and not (args[0] and args[0][0].dim() == 0):
            # Hundreds of tensors in one launch: their shapes are known, no need to ask for each.
            return [self.results.empty_like(t) for t in args[0]] if info.functional_foreach else None
        if info.name == "aten._cudnn_rnn.default":
            return _cudnn_rnn.forward(args)
        if info.name == "aten._cudnn_rnn_backward.default":
            return _cudnn_rnn.backward(args)
        return self.results(func, args, kwargs)

    def _write_down(
        self, info: OpInfo, phase: Phase, module: str, before: int, args: Any, kwargs: Any, result: Any
    ) -> None:
        outputs = list(_tensors((result,)))
        unknown = [t for t in outputs if t.untyped_storage()._cdata not in self._live]
        given = {t.untyped_storage()._cdata for t in _tensors((*args, *kwargs.values()))} if unknown else set()
        fresh = False
        for tensor in unknown:
            storage = tensor.untyped_storage()
            if storage._cdata in given:  # a view of what was made before the step
                self.storage_of(tensor)
            elif storage._cdata not in self._live:
                self.register(storage, module=module)
                fresh = True
        if info.silent or not (fresh or info.written or info.written_keywords or info.functional_foreach):
            return
        written = [args[i] for i in info.written if i < len(args)]
        written += [kwargs[k] for k in info.written_keywords if k in kwargs]
        seen = {id(t) for t in outputs}
        outputs += [t for t in _tensors(written) if id(t) not in seen]
        inputs = tuple(self.reference(t) for t in _tensors((*args, *kwargs.values())))
        returned = tuple(self.reference(t) for t in outputs)
        attributes = info.attributes
        if info.annotate is not None:
            attributes += info.annotate(args, kwargs)
        if info.foreach:
            attributes += (("num_tensors", len(args[0])),)
        shapes = [t.shape for t in inputs], [t.shape for t in returned]
        work = flops.count(info.name, *shapes, dict(attributes))
        self.append(
            OpRecord(info.name, phase, module, self.microbatch, inputs, returned, work, attributes),
            events_before=before,
        )

    def append(self, op: OpRecord, *, events_before: int) -> None:
        self.ops.append(op)
        self.events_before.append(events_before)
        self.op_sequences.append(self.current_sequence if self.phase is Phase.BACKWARD else None)

    def finish_events(self) -> tuple[MemoryEvent, ...]:
        """Events in order; storages given back in one go (an autocast cache, by hash) in the order they were taken."""
        ordered: list[MemoryEvent] = []
        run: list[MemoryEvent] = []
        for event in self.events:
            if event.is_alloc or (run and run[0].position != event.position):
                ordered += sorted(run, key=lambda e: e.storage)
                run = []
            if event.is_alloc:
                ordered.append(event)
            else:
                run.append(event)
        return (*ordered, *sorted(run, key=lambda e: e.storage))

    def finish_storages(self) -> tuple[StorageRecord, ...]:
        return tuple(
            StorageRecord(
                nbytes=s.nbytes,
                category=s.category or _category(s),
                module=s.module,
                persistent=s.category in (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE),
                on_host=s.on_host,
                parameter=s.parameter,
            )
            for s in self.storages
        )


def _category(storage: Storage) -> Category:
    kept = storage.phase in (Phase.FORWARD, Phase.RECOMPUTE) and storage.freed_in is not storage.phase
    return Category.ACTIVATION if kept else Category.TEMPORARY


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
