"""Dim-0 shards of parameters, gradients and optimizer state, as the rank with the largest ones holds them."""

from __future__ import annotations

from dataclasses import replace

from advisor.trace.edit import TraceEditor
from advisor.trace.records import Category, OpRecord, ParameterRecord, Phase, TensorRef

_SCALAR_BYTES = 8  # a step counter: kept whole on every rank


def shard_shape(shape: tuple[int, ...], degree: int) -> tuple[int, ...]:
    """Shape of the first rank's shard: `ceil(d0 / degree)` rows (torch FSDP2, `Shard(0)` with padding)."""
    return (-(-shape[0] // degree), *shape[1:]) if shape else shape


def shard_numel(parameter: ParameterRecord, degree: int) -> int:
    """Elements of one shard, padding included: the same on every rank where buffers are concerned."""
    return replace(parameter, shape=shard_shape(parameter.shape, degree)).numel


def shard_states(editor: TraceEditor, degree: int) -> None:
    """Shrink parameters, gradients and optimizer state to a shard, and the optimizer's operators to what they then read.

    What the optimizer makes of a sharded tensor is sharded too, unless it is a single number (a norm). States that
    belong to no parameter stay whole.
    """
    trace = editor.trace
    for parameter in trace.parameters:
        editor.resize(parameter.storage, shard_numel(parameter, degree) * parameter.nbytes // max(parameter.numel, 1))
    sharded = {parameter.storage for parameter in trace.parameters}
    for storage, record in enumerate(trace.storages):
        if record.category not in (Category.GRADIENT, Category.OPTIMIZER_STATE) or record.parameter < 0:
            continue
        if record.nbytes > _SCALAR_BYTES:
            parameter = trace.parameters[record.parameter]
            editor.resize(storage, _scaled(record.nbytes, shard_numel(parameter, degree), parameter.numel))
            sharded.add(storage)
    for position, op in enumerate(trace.ops):
        if op.phase is Phase.OPTIMIZER and any(ref.storage in sharded for ref in op.inputs):
            _shard_results(editor, op, degree, sharded)
            editor.replace(position, shard_op(op, degree, sharded))


def shard_op(op: OpRecord, degree: int, sharded: set[int]) -> OpRecord:
    """`op` on shards of the tensors whose storage is in `sharded`."""

    def shard(refs: tuple[TensorRef, ...]) -> tuple[TensorRef, ...]:
        return tuple(
            TensorRef(ref.storage, shard_shape(ref.shape, degree), ref.dtype, ref.strides)
            if ref.storage in sharded
            else ref
            for ref in refs
        )

    return replace(op, inputs=shard(op.inputs), outputs=shard(op.outputs), flops=op.flops // degree)


def _shard_results(editor: TraceEditor, op: OpRecord, degree: int, sharded: set[int]) -> None:
    for ref in op.outputs:
        record = editor.storages[ref.storage]
        if ref.storage not in sharded and ref.numel > 1 and not record.persistent:
            shard = replace(ref, shape=shard_shape(ref.shape, degree))
            editor.resize(ref.storage, _scaled(record.nbytes, shard.numel, ref.numel))
            sharded.add(ref.storage)


def _scaled(nbytes: int, part: int, whole: int) -> int:
    return -(-nbytes * part // whole)
