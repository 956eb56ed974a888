"""What an operator's schema and arguments say: what it writes, and the attributes the cost model reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from advisor.trace.records import Attribute

Attributes = tuple[tuple[str, Attribute], ...]
Annotate = Callable[[Any, Any], Attributes]  # (args, kwargs)

# Take memory but launch no kernel.
_SILENT = frozenset({"aten::lift_fresh", "aten::detach", "aten::alias", "aten::_local_scalar_dense", "aten::item"})
_SILENT_PREFIXES = ("prim::", "profiler::", "aten::empty", "aten::new_empty")

# One launch for a list of tensors.
_FOREACH = ("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad", "aten::_amp_foreach_")
_REDUCING = ("aten::_foreach_norm", "aten::_foreach_max", "aten::_foreach_powsum")


@dataclass(frozen=True, slots=True)
class OpInfo:
    """What the schema of an operator says, looked up once."""

    name: str
    silent: bool
    foreach: bool
    functional_foreach: bool  # one new tensor for each, of its shape
    written: tuple[int, ...]  # positions of mutated arguments
    written_keywords: tuple[str, ...]
    attributes: Attributes
    annotate: Annotate | None


def describe(func: Any) -> OpInfo:
    """Read the schema of an operator overload."""
    schema = func._schema
    name = str(func)
    mutated = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    positions = {a.name: i for i, a in enumerate(x for x in schema.arguments if not x.kwarg_only)}
    foreach = schema.name.startswith(_FOREACH) and schema.name not in _REDUCING
    short = schema.name.removeprefix("aten::")
    tags = tuple(("pointwise", True) for tag in func.tags if tag == torch.Tag.pointwise)
    return OpInfo(
        name=name,
        silent=schema.name in _SILENT or schema.name.startswith(_SILENT_PREFIXES),
        foreach=foreach,
        functional_foreach=foreach and not mutated,
        written=tuple(positions[a.name] for a in mutated if a.name in positions),
        written_keywords=tuple(a.name for a in mutated if a.name not in positions),
        attributes=tags,
        annotate=_ANNOTATIONS.get(short),
    )


def _convolution(args: Any, kwargs: Any) -> Attributes:
    weight, stride, dilation, transposed, groups = args[1], args[3], args[5], args[6], args[8]
    return _convolution_attributes(weight, stride, dilation, transposed, groups)


def _convolution_backward(args: Any, kwargs: Any) -> Attributes:
    weight, stride, dilation, transposed, groups, mask = args[2], args[4], args[6], args[7], args[9], args[10]
    return (
        *_convolution_attributes(weight, stride, dilation, transposed, groups),
        ("grad_input", mask[0]),
        ("grad_weight", mask[1]),
        ("grad_bias", mask[2]),
    )


def _convolution_attributes(
    weight: torch.Tensor, stride: list[int], dilation: list[int], transposed: bool, groups: int
) -> Attributes:
    return (
        ("groups", int(groups)),
        ("transposed", bool(transposed)),
        ("dims", weight.dim() - 2),
        ("stride", max(stride)),
        ("dilation", max(dilation)),
        ("tf32", torch.backends.cudnn.allow_tf32),
    )


def _matmul(args: Any, kwargs: Any) -> Attributes:
    return (("tf32", torch.get_float32_matmul_precision() != "highest"),)


def _attention(kernel: str, causal: int) -> Annotate:
    def annotate(args: Any, kwargs: Any) -> Attributes:
        is_causal = args[causal] if causal < len(args) else kwargs.get("is_causal", False)
        return (("kernel", kernel), ("is_causal", bool(is_causal)))

    return annotate


def _rnn(offset: int) -> Annotate:
    def annotate(args: Any, kwargs: Any) -> Attributes:
        hidden, layers, batch_first, bidirectional = (args[offset + i] for i in (1, 3, 4, 7))
        return (
            ("hidden_size", int(hidden)),
            ("num_layers", int(layers)),
            ("bidirectional", bool(bidirectional)),
            ("seq_len", int(args[0].shape[1 if batch_first else 0])),
        )

    return annotate


_ANNOTATIONS: dict[str, Annotate] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mm": _matmul,
    "addmm": _matmul,
    "bmm": _matmul,
    "baddbmm": _matmul,
    "_scaled_dot_product_flash_attention": _attention("flash", 4),
    "_scaled_dot_product_flash_attention_backward": _attention("flash", 11),
    "_scaled_dot_product_efficient_attention": _attention("efficient", 6),
    "_scaled_dot_product_efficient_attention_backward": _attention("efficient", 11),
    "_scaled_dot_product_flash_attention_for_cpu": _attention("flash", 4),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention("flash", 7),
    "_cudnn_rnn": _rnn(6),
    "_cudnn_rnn_backward": _rnn(10),
}
