"""Smaller models from a config: half the depth, half the width, half the sequence. No torch at import.

For configs of Hugging Face and of the nanoGPT kind: an object with plain fields for layers, width, heads and positions.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Builder = Callable[[], torch.nn.Module]

_DEPTH = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth")
_WIDTH = ("hidden_size", "n_embd", "d_model", "embed_dim", "dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "nhead")
_KEY_VALUE_HEADS = ("num_key_value_heads", "n_kv_head", "n_kv_heads")
_FEED_FORWARD = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "dim_feedforward")
_SEQUENCE = ("max_position_embeddings", "n_positions", "block_size", "max_seq_len", "context_length")
_HEAD_SIZE_MULTIPLE = 8  # flash kernels pad other head sizes

HALF_SEQUENCE = "half-sequence"  # the batch must follow: `halved_batch`


def config_variants(config: Any, build_from_config: Callable[[Any], torch.nn.Module]) -> dict[str, Builder]:
    """Builders of the smaller models that `config` allows, by name; empty where it has none of the fields."""
    changes = {
        "half-depth": _half_depth(config),
        "half-width": _half_width(config),
        HALF_SEQUENCE: _half(config, _SEQUENCE),
    }
    return {name: _builder(config, change, build_from_config) for name, change in changes.items() if change}


def halved_batch(batch: Any) -> Any:
    """The batch with its sequence, the second dimension of its longest integer tensor, cut in half."""
    import torch
    from torch.utils import _pytree as pytree

    leaves = (leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim() > 1)
    length = max((leaf.shape[1] for leaf in leaves if leaf.dtype == torch.int64), default=0)

    def cut(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() > 1 and tensor.shape[1] == length:
            return tensor[:, : max(1, length // 2)].contiguous()
        return tensor

    return pytree.tree_map_only(torch.Tensor, cut, batch)


def _builder(config: Any, change: Mapping[str, Any], build_from_config: Callable[[Any], torch.nn.Module]) -> Builder:
    def build() -> torch.nn.Module:
        if dataclasses.is_dataclass(config) and not isinstance(config, type):
            fields = {field.name for field in dataclasses.fields(config)}
            if fields >= change.keys():
                return build_from_config(dataclasses.replace(config, **change))
        smaller = copy.deepcopy(config)
        for field, value in change.items():
            setattr(smaller, field, value)
        return build_from_config(smaller)

    return build


def _field(config: Any, names: tuple[str, ...]) -> tuple[str, int] | None:
    for name in names:
        value = getattr(config, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return name, value
    return None


def _half(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The first of `names` that the config has, halved; empty if it has none or it is odd."""
    found = _field(config, names)
    return {found[0]: found[1] // 2} if found and found[1] % 2 == 0 else {}


def _half_depth(config: Any) -> dict[str, Any]:
    found = _field(config, _DEPTH)
    if found is None or found[1] < 2:
        return {}
    name, depth = found
    per_layer = {
        field: value[: depth // 2]
        for field, value in vars(config).items()
        if isinstance(value, (list, tuple)) and len(value) == depth and not field.startswith("_")
    }
    return {name: depth // 2, **per_layer}


def _half_width(config: Any) -> dict[str, Any]:
    """Half as wide: half as many heads of the same size, or, where their number is odd, as many of half the size."""
    width, heads = _field(config, _WIDTH), _field(config, _HEADS)
    if width is None or heads is None or width[1] % 2 or width[1] % heads[1]:
        return {}
    change: dict[str, Any] = {width[0]: width[1] // 2, **_half(config, _FEED_FORWARD)}
    if heads[1] % 2 == 0:
        return {**change, heads[0]: heads[1] // 2, **_half(config, _KEY_VALUE_HEADS)}  # an odd number divides both
    return change if (width[1] // 2) % (heads[1] * _HEAD_SIZE_MULTIPLE) == 0 else {}
