"""Repeated blocks of a model: what gets checkpointed, sharded, cut into stages, and traced once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Attributes that only number a block: they differ from layer to layer and change nothing it does.
_INDEX_ATTRIBUTES = frozenset(
    {"layer_idx", "layer_id", "layer_index", "idx", "index", "i", "block_idx", "layer_number"}
)


def signature(module: torch.nn.Module) -> Hashable:
    """Equal for two modules that run the same operators on the same shapes.

    Classes, parameter and buffer shapes and plain attributes of every submodule count. A float counts only as zero or
    not: a drop-path rate of 0.1 launches what 0.2 launches, a rate of 0 does not.
    """
    parts: list[Hashable] = []
    for name, child in module.named_modules():
        tensors = tuple(
            (key, tuple(t.shape), t.dtype, t.requires_grad, t.stride())
            for key, t in (*child._parameters.items(), *child._buffers.items())
            if t is not None
        )
        plain = tuple(
            (key, bool(value) if isinstance(value, float) else value)
            for key, value in sorted(child.__dict__.items())
            if isinstance(value, (bool, int, float, str, tuple))
            and key not in _INDEX_ATTRIBUTES
            and _is_hashable(value)
        )
        parts.append((name, type(child), tensors, plain))
    return tuple(parts)


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def repeated_blocks(model: torch.nn.Module, *, shortest: int = 2) -> list[list[str]]:
    """Chains of equal modules held in one `ModuleList` or `Sequential`, outermost first; names are fully qualified.

    A list of lists (vit-pytorch's `layers[i][0]`, `layers[i][1]`) gives one chain per inner position. A chain inside a
    member of another chain (the experts of a block) is not a chain of its own.
    """
    chains: list[list[str]] = []
    for members in _chains(model, ""):
        if len(members) >= shortest:
            chains.append(members)
    return chains


def _chains(module: torch.nn.Module, prefix: str) -> Iterator[list[str]]:
    from torch import nn

    children = list(module.named_children())
    if isinstance(module, (nn.ModuleList, nn.Sequential)):
        run: list[tuple[str, nn.Module]] = []
        runs: list[list[tuple[str, nn.Module]]] = []
        previous: Hashable = None
        for name, child in children:
            current = signature(child) if any(True for _ in child.parameters()) else None
            if current is None or current != previous:
                run = []
                runs.append(run)
            run.append((name, child))
            previous = current
        for run in runs:
            if len(run) == 1:
                name, child = run[0]
                yield from _chains(child, f"{prefix}{name}.")
            elif isinstance(run[0][1], nn.ModuleList):  # never called itself: its positions are the blocks
                for position, member in run[0][1].named_children():
                    if any(True for _ in member.parameters()):
                        yield [f"{prefix}{name}.{position}" for name, _ in run]
            else:
                yield [f"{prefix}{name}" for name, _ in run]
        return
    for name, child in children:
        yield from _chains(child, f"{prefix}{name}.")
