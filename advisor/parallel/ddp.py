"""DDP: whole replicas; gradients are all-reduced in buckets while backward goes on (torch `DistributedDataParallel`).

Buckets as torch 2.13 builds them (torch/csrc/distributed/c10d/reducer.cpp, `compute_bucket_assignment_by_size`): in the
order in which gradients get ready, one dtype each, closed by the parameter that makes them reach the cap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.hardware.mesh import Mesh
from advisor.parallel.base import Strategy, data_parallel_notes, why_not_data_parallel
from advisor.trace.edit import TraceEditor
from advisor.trace.records import Category, OpRecord, Phase, StepTrace, StorageRecord, TensorRef

FIRST_BUCKET_BYTES = 2**20  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
BUCKET_BYTES = 25 * 2**20  # bucket_cap_mb=25, the default
_SNIPPET = """\
import os
from contextlib import nullcontext

from torch.nn.parallel import DistributedDataParallel

local_rank = int(os.environ["LOCAL_RANK"])
model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank], gradient_as_bucket_view=True)
optimizer = make_optimizer(model)
for index, batch in enumerate(micro_batches):
    is_last = index == len(micro_batches) - 1
    with nullcontext() if is_last else model.no_sync():
        (compute_loss(model, batch) / len(micro_batches)).backward()
optimizer.step()
# Gradients that stay views of DDP's buckets accumulate there, not beside them.
optimizer.zero_grad(set_to_none=len(micro_batches) == 1)
"""


class Ddp(Strategy):
    """With `gradient_as_bucket_view=True` gradients are views of the buckets, which live across steps: no extra bytes.

    Only the last micro-batch is reduced (`no_sync`).
    """

    name = "ddp"
    axes = ("dp_replicate",)
    title = "DistributedDataParallel"
    simplicity = 0
    sharded = frozenset[Category]()
    reshards = False

    def illegal(self, trace: StepTrace, mesh: Mesh) -> str | None:
        return why_not_data_parallel(trace, mesh, self.axes)

    def shard(self, trace: StepTrace, mesh: Mesh, *, reshard_after_forward: bool = True) -> StepTrace:
        return trace if mesh.data_parallel_size == 1 else replicate(trace)

    def snippet(self, mesh: Mesh, *, reshard_after_forward: bool = True, blocks: str = "blocks") -> str:
        return _SNIPPET


@dataclass(slots=True)
class _Bucket:
    parameters: list[int] = field(default_factory=list)
    nbytes: int = 0


def replicate(
    trace: StepTrace, *, first_bucket_bytes: int = FIRST_BUCKET_BYTES, bucket_bytes: int = BUCKET_BYTES
) -> StepTrace:
    """The step of any of the ranks.

    Known limitations: the division by the number of ranks of accumulated gradients is left out (2 bytes moved per
    byte of gradient and step), and so are the broadcast's own buffers.
    """
    editor = TraceEditor(trace)
    order = _ready_order(trace)
    buckets = _buckets(trace, order, first_bucket_bytes, bucket_bytes)
    storage_of: dict[int, int] = {}
    for bucket in buckets:
        storage = editor.add_storage(StorageRecord(bucket.nbytes, Category.GRADIENT, "", True))
        editor.alloc(storage, 0)
        storage_of |= dict.fromkeys(bucket.parameters, storage)
    for storage, record in enumerate(trace.storages):
        if record.category is Category.GRADIENT and record.parameter in storage_of:
            _move_into_bucket(editor, storage, storage_of[record.parameter])
    if trace.num_microbatches > 1:
        _rebuild(editor, buckets)
    _broadcast_buffers(editor)
    _all_reduce(editor, buckets, order)
    notes = ["gradients are views of DDP's buckets (gradient_as_bucket_view=True) and keep their memory between steps"]
    if trace.num_microbatches > 1:
        notes.append("gradients are all-reduced in the last micro-batch only (no_sync)")
    missing = [trace.parameters[index].name for index, ready in order.items() if ready is None]
    if missing:
        notes.append(f"no gradient for {', '.join(missing)}: DDP needs find_unused_parameters=True")
    return editor.finish(notes=data_parallel_notes(trace) + tuple(notes))


def _ready_order(trace: StepTrace) -> dict[int, int | None]:
    """Trained parameters in the order in which the steady step's last backward completes their gradients.

    The value is the operator that does so; None for a parameter that gets no gradient.
    """
    gradients = {
        storage: record.parameter
        for storage, record in enumerate(trace.storages)
        if record.category is Category.GRADIENT and record.parameter >= 0
    }
    ready: dict[int, int] = {}
    for position in range(trace.steady_start, len(trace.ops)):
        op = trace.ops[position]
        if op.phase is Phase.BACKWARD:
            for ref in op.outputs:
                if (parameter := gradients.get(ref.storage)) is not None:
                    ready[parameter] = position
    in_order: dict[int, int | None] = {
        parameter: ready[parameter] for parameter in sorted(ready, key=ready.__getitem__)
    }
    return in_order | {i: None for i, p in enumerate(trace.parameters) if p.requires_grad and i not in ready}


def _buckets(trace: StepTrace, order: dict[int, int | None], first: int, cap: int) -> list[_Bucket]:
    full: list[_Bucket] = []
    filling: dict[str, _Bucket] = {}
    limits: dict[str, int] = {}
    for index in order:
        parameter = trace.parameters[index]
        bucket = filling.setdefault(parameter.dtype, _Bucket())
        bucket.parameters.append(index)
        bucket.nbytes += parameter.nbytes
        if bucket.nbytes >= limits.setdefault(parameter.dtype, first):
            full.append(filling.pop(parameter.dtype))
            limits[parameter.dtype] = cap
    return full + list(filling.values())


def _move_into_bucket(editor: TraceEditor, gradient: int, bucket: int) -> None:
    """What backward made is copied into the bucket (added, where the bucket holds earlier micro-batches) and freed."""
    trace, position = editor.trace, editor.alloc_position[gradient]
    if position < 0:
        return
    parameter = trace.parameters[trace.storages[gradient].parameter]
    made = TensorRef(gradient, parameter.shape, parameter.dtype)
    view = TensorRef(bucket, parameter.shape, parameter.dtype)
    name, inputs = ("aten.mul.out", (made,)) if trace.num_microbatches == 1 else ("aten.add_.Tensor", (view, made))
    module = trace.storages[gradient].module
    copy = OpRecord(name, Phase.BACKWARD, module, 0, inputs, (view,), 0, (("pointwise", True),))
    after = position + 1
    if trace.ops[after].phase is Phase.BACKWARD and trace.ops[after].module == trace.ops[position].module:
        after += 1  # autograd hands a gradient on when its node is done: a linear's makes that of the input next
    editor.insert(copy, after)
    editor.free(gradient, after)


def _rebuild(editor: TraceEditor, buckets: list[_Bucket]) -> None:
    """Before its second step DDP builds the buckets anew; gradients that were not set to None keep the old ones until
    they have been copied."""
    start = editor.trace.steady_start
    old = StorageRecord(sum(bucket.nbytes for bucket in buckets), Category.COMMUNICATION, "", False)
    storage = editor.add_storage(old)
    editor.alloc(storage, start)
    editor.free(storage, start)


def _broadcast_buffers(editor: TraceEditor) -> None:
    """`broadcast_buffers=True`: rank 0's buffers, once a step, before the first forward."""
    trace = editor.trace
    nbytes = sum(record.nbytes for record in trace.storages if record.category is Category.BUFFER)
    if nbytes:
        start = editor.mark(trace.steady_start)
        broadcast = editor.issue("broadcast", nbytes, at=start, axis="dp_replicate", microbatch=0, unit="buffers")
        editor.wait(broadcast, start)


def _all_reduce(editor: TraceEditor, buckets: list[_Bucket], order: dict[int, int | None]) -> None:
    """Each bucket once it and those before it are full; the optimizer waits for all."""
    trace = editor.trace
    end = 1 + max(
        position
        for position in range(trace.steady_start, len(trace.ops))
        if trace.ops[position].phase in (Phase.BACKWARD, Phase.RECOMPUTE)
    )
    last = trace.steady_start
    for number, bucket in enumerate(buckets):
        ready = [position + 1 if (position := order[index]) is not None else end for index in bucket.parameters]
        last = max(last, *ready)
        collective = editor.issue(
            "all_reduce",
            bucket.nbytes,
            at=editor.mark(last),
            axis="dp_replicate",
            microbatch=0,
            unit=f"bucket {number}",
        )
        editor.wait(collective, editor.mark(end))


STRATEGY = Ddp()
