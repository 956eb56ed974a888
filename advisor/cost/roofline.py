"""What the kernels of an operator have to do: FLOPs at which rate, bytes, launches. No hardware here.

Bytes follow the tensors: read once, written once, but for the operators that touch a part of a table (embedding, index,
scatter) or overwrite without reading (fill, copy). The backward of a convolution is two kernels, one for each gradient.
Launches of `_foreach_*`: the limits of MultiTensorApply.cuh, at most 320 blocks of 65,536 elements in one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from advisor.cost.classes import ARITHMETIC_CLASSES, CONVOLUTION_CLASSES, OpClass, base_name, classify
from advisor.trace.records import OpRecord, TensorRef

_FOREACH_CHUNK = 65_536  # elements of one block (kChunkSize)
_FOREACH_BLOCKS = 320  # of one launch (depth_to_max_blocks)
_FOREACH_TENSORS = 110  # of one launch with one list (depth_to_max_tensors); fewer with more lists


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel, or `num_kernels` of one kind that share the work."""

    op_class: OpClass
    precision: str  # at which its FLOPs run; "" where there are none
    flops: int
    num_bytes: int
    num_kernels: int = 1


Key = tuple[object, ...]


def key_of(op: OpRecord) -> Key:
    """Operators with equal keys have equal work."""
    refs = op.inputs + op.outputs
    return (
        op.name,
        op.attributes,
        op.flops,
        len(op.inputs),
        len({ref.storage for ref in refs}),
        tuple([(ref.shape, ref.dtype, ref.strides) for ref in refs]),
    )


def work_of(op: OpRecord) -> tuple[Work, ...]:
    """The kernels of `op`; empty where it launches none."""
    op_class = classify(op)
    if op_class is OpClass.NO_KERNEL:
        return ()
    name = base_name(op.name)
    if op_class in CONVOLUTION_CLASSES and name.endswith("backward"):
        return _convolution_backward(op, op_class)
    if op_class is OpClass.OPTIMIZER:
        return (Work(op_class, "", 0, op.bytes_read + op.bytes_written, _foreach_launches(op)),)
    num_bytes = _BYTES.get(name, _all_bytes)(op)
    if op_class not in ARITHMETIC_CLASSES:
        return (Work(op_class, "", 0, num_bytes),)
    # A causal kernel skips the masked half of the scores.
    flops = op.flops // 2 if op.attribute("is_causal") else op.flops
    return (Work(op_class, _precision(op), flops, num_bytes),)


def _convolution_backward(op: OpRecord, op_class: OpClass) -> tuple[Work, ...]:
    grad, image, weight = op.inputs[:3]
    wanted = [key for key in ("grad_input", "grad_weight") if op.attribute(key) is not False]
    other = {"grad_input": weight, "grad_weight": image}
    made = {"grad_input": image, "grad_weight": weight}
    precision = _precision(op)
    work = [
        Work(op_class, precision, op.flops // len(wanted), grad.nbytes + other[key].nbytes + made[key].nbytes)
        for key in wanted
    ]
    if op.attribute("grad_bias"):
        work.append(Work(OpClass.REDUCTION, "", 0, grad.nbytes))
    return tuple(work)


def _precision(op: OpRecord) -> str:
    """Rate the FLOPs of `op` run at: the dtype of its inputs, TF32 where the trace says so."""
    dtype = next((ref.dtype for ref in op.inputs if ref.shape), op.inputs[0].dtype if op.inputs else "float32")
    if dtype == "float32" and op.attribute("tf32"):
        return "tf32"
    return "float8" if dtype.startswith("float8") else dtype


def _foreach_launches(op: OpRecord) -> int:
    num_tensors = int(op.attribute("num_tensors") or 1)
    elements = sum(ref.numel for ref in op.inputs[:num_tensors])
    blocks = elements // _FOREACH_CHUNK + num_tensors
    return max(-(-blocks // _FOREACH_BLOCKS), -(-num_tensors // _FOREACH_TENSORS))


def _all_bytes(op: OpRecord) -> int:
    return op.bytes_read + op.bytes_written


def _written(op: OpRecord) -> int:
    return op.bytes_written


def _copied(op: OpRecord) -> int:
    """`copy_` reads its source and writes itself."""
    return _sum(op.inputs[1:]) + op.bytes_written


def _looked_up(op: OpRecord) -> int:
    """Rows of a table: as many bytes read as written, and the indices."""
    return _sum(op.inputs[1:]) + 2 * op.bytes_written


def _scattered(op: OpRecord) -> int:
    """In place into a table: what is put in is read, and its place read and written."""
    values = op.inputs[-1]
    return _sum(op.inputs[1:]) + 2 * values.nbytes if op.name.split(".")[1].endswith("_") else _all_bytes(op)


def _sum(refs: Sequence[TensorRef]) -> int:
    return sum(ref.nbytes for ref in refs)


_OVERWRITE = """zero fill uniform normal random exponential bernoulli full_like zeros_like ones_like rand_like
    randn_like randint_like new_zeros new_ones new_full"""
_LOOK_UP = "embedding index index_select gather take _unsafe_index _embedding_bag"
_SCATTER = """index_put _index_put_impl _unsafe_index_put scatter scatter_add scatter_reduce index_add index_copy"""
_BYTES: dict[str, Callable[[OpRecord], int]] = {
    "copy": _copied,
    **dict.fromkeys(_OVERWRITE.split(), _written),
    **dict.fromkeys(_LOOK_UP.split(), _looked_up),
    **dict.fromkeys(_SCATTER.split(), _scattered),
}
