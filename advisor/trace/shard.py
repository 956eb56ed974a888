"""Dim-0 shards of parameters, gradients and optimizer state, as the rank with the largest ones holds them."""

from __future__ import annotations

from collections.abc import Container
from functools import lru_cache

from advisor.trace.edit import TraceEditor
from advisor.trace.records import Category, OpRecord, ParameterRecord, Phase, TensorRef

_STATES = frozenset({Category.GRADIENT, Category.OPTIMIZER_STATE})
_SCALAR_BYTES = 8  # a step counter: kept whole on every rank


@lru_cache(maxsize=4096)
def shard_shape(shape: tuple[int, ...], degree: int) -> tuple[int, ...]:
    """Shape of the first rank's shard: `ceil(d0 / degree)` rows (torch FSDP2, `Shard(0)` with padding)."""
    return (-(-shape[0] // degree), *shape[1:]) if shape else shape


def shard_numel(parameter: ParameterRecord, degree: int) -> int:
    """Elements of one shard, padding included: the same on every rank where buffers are concerned."""
    rows = parameter.shape[0] if parameter.shape else 1
    return -(-rows // degree) * (parameter.numel // rows) if rows else 0


def shard_states(editor: TraceEditor, degree: int) -> None:
    """Shrink parameters, gradients and optimizer state to a shard, and what the optimizer's operators read of them.

    What the optimizer makes of a sharded tensor is sharded too, unless it is a single number (a norm). States that
    belong to no parameter stay whole.
    """
    trace = editor.trace
    numels = [(shard_numel(parameter, degree), parameter.numel) for parameter in trace.parameters]
    for parameter, (part, whole) in zip(trace.parameters, numels, strict=True):
        editor.resize(parameter.storage, _scaled(parameter.nbytes, part, whole))
    sharded = {parameter.storage for parameter in trace.parameters}
    for storage, record in enumerate(trace.storages):
        if record.category not in _STATES or record.parameter < 0 or record.nbytes <= _SCALAR_BYTES:
            continue
        editor.resize(storage, _scaled(record.nbytes, *numels[record.parameter]))
        sharded.add(storage)
    for position, op in enumerate(trace.ops):
        if op.phase is Phase.OPTIMIZER and any(ref.storage in sharded for ref in op.inputs):
            _shard_results(editor, op, degree, sharded)
            editor.replace(position, shard_op(op, degree, sharded))


def shard_op(op: OpRecord, degree: int, sharded: Container[int]) -> OpRecord:
    """`op` on shards of the tensors whose storage is in `sharded`."""
    inputs, outputs = (_shard_refs(refs, degree, sharded) for refs in (op.inputs, op.outputs))
    return OpRecord(op.name, op.phase, op.module, op.microbatch, inputs, outputs, op.flops // degree, op.attributes)


def _shard_refs(refs: tuple[TensorRef, ...], degree: int, sharded: Container[int]) -> tuple[TensorRef, ...]:
    return tuple(
        [
            TensorRef(ref.storage, shard_shape(ref.shape, degree), ref.dtype, ref.strides)
            if ref.storage in sharded
            else ref
            for ref in refs
        ]
    )


def _shard_results(editor: TraceEditor, op: OpRecord, degree: int, sharded: set[int]) -> None:
    for ref in op.outputs:
        record = editor.storages[ref.storage]
        if ref.storage not in sharded and not record.persistent and ref.numel > 1:
            rows = ref.shape[0]
            editor.resize(ref.storage, _scaled(record.nbytes, -(-rows // degree), rows))
            sharded.add(ref.storage)


def _scaled(nbytes: int, part: int, whole: int) -> int:
    return -(-nbytes * part // whole) if whole else 0
