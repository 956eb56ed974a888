"""Recomputation of repeated blocks in backward, by `torch.utils.checkpoint` (non-reentrant)."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from advisor.errors import UsageError
from advisor.workload.blocks import repeated_blocks

Model = TypeVar("Model", bound=nn.Module)

# Outputs worth keeping: much arithmetic for each byte.
_KEPT = frozenset(
    (
        "mm",
        "addmm",
        "convolution",
        "cudnn_convolution",
        "_cudnn_rnn",
        "_scaled_mm",
        "_grouped_mm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
)
# Batched products are kept unless they are larger than their factors: attention scores, s x s from two s x d, are
# little arithmetic for each byte (Korthikanti 2022, arXiv:2205.05198, section 5).
_KEPT_IF_SMALL = frozenset({"bmm", "baddbmm"})


def checkpoint_blocks(model: Model, *, every: int = 1, selective: bool = False) -> Model:
    """Recompute each `every`-th block of each chain, in place; names of modules and parameters stay."""
    chains = repeated_blocks(model)
    if not chains:
        raise UsageError("checkpointing: the model has no repeated blocks", hint="leave checkpointing at 'none'")
    forward = _selectively_recomputed if selective else _recomputed
    for chain in chains:
        for name in chain[::every]:
            block = model.get_submodule(name)
            block.forward = MethodType(forward, block)
    config: Any = getattr(model, "config", None)
    if getattr(config, "use_cache", False):  # recomputation would append to the key-value cache twice
        config.use_cache = False
    return model


def _recomputed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return checkpoint(_Calls(self), *args, use_reentrant=False, **kwargs)


def _selectively_recomputed(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    context = partial(create_selective_checkpoint_contexts, keep_products)
    return checkpoint(_Calls(self), *args, use_reentrant=False, context_fn=context, **kwargs)


class _Calls:
    """Runs a block: first inside its own call, then, in backward, as a call of its own with its hooks."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._is_first = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        block = self._block
        if self._is_first:
            self._is_first = False
            return type(block).forward(block, *args, **kwargs)
        wrapper = block.__dict__.pop("forward")
        try:
            return block(*args, **kwargs)
        finally:
            block.forward = wrapper


def keep_products(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """The policy of `selective`: keep what matrix products, convolutions and attention put out, recompute the rest."""
    name = op._schema.name.removeprefix("aten::")
    kept = name in _KEPT or (name in _KEPT_IF_SMALL and _is_small(args))
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def _is_small(args: tuple[Any, ...]) -> bool:
    """Whether a batched product is not larger than its two factors."""
    left, right = [arg for arg in args if isinstance(arg, Tensor)][-2:]
    return torch.Size((*left.shape[:-1], right.shape[-1])).numel() <= left.numel() + right.numel()
