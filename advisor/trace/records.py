"""What one training step did, as immutable records without torch: operators, storages, lives.

A `StepTrace` holds two consecutive optimizer steps: the first (which creates optimizer state) and a steady one.
Everything above this room (cost, parallel, search, report) reads these records and never the user's model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter

from advisor.trace.category import STATES as STATES
from advisor.trace.category import Category as Category
from advisor.units import dtype_bytes
from advisor.workload.spec import Phase as Phase


class _Packed:
    """Pickles as its values: a trace of a hundred thousand records crosses a pipe, and slots alone are slow at that."""

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), _getter(self.__slots__)(self)


@cache
def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[object, ...]]:
    return attrgetter(*names)


@dataclass(frozen=True, slots=True)
class TensorRef(_Packed):
    """One tensor an operator reads or writes: a view of a storage."""

    storage: int  # index in StepTrace.storages
    shape: tuple[int, ...]
    dtype: str  # torch's name without the prefix: "float32", "bfloat16", "int64", "bool"
    strides: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        """Bytes the tensor's elements take (an expanded dimension counts once)."""
        count = 1
        strides = self.strides or (1,) * len(self.shape)
        for size, stride in zip(self.shape, strides, strict=True):
            if stride:
                count *= size
        return count * dtype_bytes(self.dtype)


Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class OpRecord(_Packed):
    """One operator as the device would launch it."""

    name: str  # "aten.mm.default", as torch prints the overload
    phase: Phase
    module: str  # fully qualified name of the module it belongs to; "" is the root
    microbatch: int  # 0: first micro-batch of the step (or outside the loop), 1: stands for each later one
    inputs: tuple[TensorRef, ...]
    outputs: tuple[TensorRef, ...]
    flops: int  # 1 multiply-add = 2; 0 for operators that are not counted by FLOPs
    attributes: tuple[tuple[str, Attribute], ...] = ()  # e.g. ("groups", 32), ("num_tensors", 148), ("kernel", "flash")

    @property
    def bytes_read(self) -> int:
        """Bytes of the distinct tensors read."""
        return sum(ref.nbytes for ref in _distinct(self.inputs))

    @property
    def bytes_written(self) -> int:
        """Bytes of the distinct tensors written."""
        return sum(ref.nbytes for ref in _distinct(self.outputs))

    def attribute(self, name: str) -> Attribute | None:
        return next((value for key, value in self.attributes if key == name), None)


def _distinct(refs: tuple[TensorRef, ...]) -> Iterator[TensorRef]:
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for ref in refs:
        if (key := (ref.storage, ref.shape)) not in seen:
            seen.add(key)
            yield ref


@dataclass(frozen=True, slots=True)
class StorageRecord(_Packed):
    """One block of memory: `nbytes` before the allocator rounds it."""

    nbytes: int
    category: Category
    module: str  # module of the operator that made it; for a parameter the module that owns it
    persistent: bool  # lives across steps (parameters, buffers, optimizer state)
    on_host: bool = False  # offloaded, or a CPU scalar such as Adam's step: takes no device memory
    parameter: int = -1  # for a gradient or an optimizer state: index of its parameter


@dataclass(frozen=True, slots=True)
class MemoryEvent(_Packed):
    """A storage is taken or given back; events are in program order."""

    position: int  # number of operators recorded before it: it happens during operator `position`
    storage: int
    is_alloc: bool


@dataclass(frozen=True, slots=True)
class ParameterRecord:
    name: str  # fully qualified
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    storage: int  # tied parameters share a storage and appear once

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        return self.numel * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class ModuleRecord:
    name: str  # fully qualified; "" is the root
    type_name: str
    num_parameters: int  # its own and its children's, tied ones once
    attributes: tuple[tuple[str, Attribute], ...] = ()  # plain sizes: "kernel_size", "normalized_shape", "p", ...


@dataclass(frozen=True, slots=True)
class BlockChain:
    """Modules of one class and one shape that are called one after another: what gets checkpointed, sharded, cut."""

    names: tuple[str, ...]
    type_name: str


@dataclass(frozen=True, slots=True)
class OptimizerRecord:
    type_name: str  # "AdamW"
    implementation: str  # "foreach" | "fused" | "for-loop" | "custom"
    learning_rate: float | None
    betas: tuple[float, ...] = ()
    weight_decay: float | None = None


@dataclass(frozen=True, slots=True)
class CollectiveRecord:
    """A collective put in by a strategy into the steady step: issued at one operator, needed at another.

    With `microbatch == 0` it runs once a step: at operators of a later micro-batch, in the last one.
    """

    kind: str  # "all_reduce" | "all_gather" | "reduce_scatter" | "broadcast"
    payload_bytes: int  # S of nccl-tests: the full (gathered) buffer
    axis: str  # mesh axis the group spans: "dp_replicate" | "dp_shard" | ...
    issue_position: int  # may start once operator `issue_position - 1` is done
    wait_position: int  # operator `wait_position` needs the result; len(ops) = end of the step
    stream: str  # collectives of one stream run one after another
    microbatch: int  # as in OpRecord
    unit: str = ""  # FSDP unit or DDP bucket, for the report
    after: int = -1  # index of the collective, of another stream, whose result it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceTarget:
    """Whose semantics a trace follows: autocast lists, attention kernels, optimizer defaults."""

    device_type: str  # "cuda" (ROCm too) | "cpu" | "mps"
    compute_capability: tuple[int, int] | None = None  # NVIDIA: decides which attention kernels exist


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """Two optimizer steps of one workload as if on the target device.

    `ops[:steady_start]` is the first step, `ops[steady_start:]` the steady one. With more than one micro-batch, two are
    traced: operators with `microbatch == 1` stand for each of the other `num_microbatches - 1`.
    """

    ops: tuple[OpRecord, ...]
    steady_start: int
    storages: tuple[StorageRecord, ...]
    events: tuple[MemoryEvent, ...]
    parameters: tuple[ParameterRecord, ...]
    modules: tuple[ModuleRecord, ...]
    block_chains: tuple[BlockChain, ...]
    optimizer: OptimizerRecord
    device_type: str  # "cuda" | "cpu" | "mps": whose semantics the trace follows
    autocast_dtype: str | None
    micro_batch_size: int
    num_microbatches: int
    tokens_per_sample: int | None  # length of the integer sequence fed in, if there is one
    cudnn_benchmark: bool = False  # torch.backends.cudnn.benchmark, as the user's code left it
    collectives: tuple[CollectiveRecord, ...] = ()
    notes: tuple[str, ...] = field(default=())  # what was assumed, redirected or not traced; printed in the report

    @property
    def num_parameters(self) -> int:
        return sum(p.numel for p in self.parameters)

    @property
    def num_trainable_parameters(self) -> int:
        return sum(p.numel for p in self.parameters if p.requires_grad)

    def steady_ops(self) -> tuple[OpRecord, ...]:
        return self.ops[self.steady_start :]

    def repeats(self, op: OpRecord) -> int:
        """How often `op` runs in one optimizer step."""
        return self.num_microbatches - 1 if op.microbatch else 1

    def flops_per_step(self) -> int:
        """FLOPs of one optimizer step as executed (with recomputation)."""
        return sum(op.flops * self.repeats(op) for op in self.steady_ops())
