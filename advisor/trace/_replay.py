"""Blocks that repeat run a few times; the records of the others are written down from those.

Of a chain of n equal blocks called one after another, the first three and the last three run. Block 1 gives the
template of a forward, block n-2 that of a backward, because backward meets it first. A block between takes its records
from the templates, with its own parameters, storages and names; its output is a tensor whose `backward` writes the
backward records. Storages a block keeps for backward are not held by tensors then: the template says when they die.

What a template can't express ends in `ReplayInvalidError`, and the whole model is traced: a block that leaves more than
its output behind (a cache, router logits), reads what an earlier block left, or steps the optimizer from a hook. The
blocks that run must give the records that the templates say; the limit is a block in the middle of a chain that differs
from these six without a module, a shape or a plain attribute that shows it.
"""

from __future__ import annotations

from collections import Counter

import torch

from advisor.trace._chain import SHORTEST, Chain
from advisor.trace._chain import ReplayInvalidError as ReplayInvalidError
from advisor.trace._recorder import Recorder


class BlockReplayer:
    """Context manager that puts itself in front of every block of every long chain."""

    def __init__(self, recorder: Recorder, model: torch.nn.Module, chains: list[list[str]]) -> None:
        modules = dict(model.named_modules())
        uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
        self._chains = [
            Chain(recorder, [(name, modules[name]) for name in chain])
            for chain in chains
            if len(chain) >= SHORTEST and _alike([modules[name] for name in chain], uses)
        ]
        self._recorder = recorder

    def __enter__(self) -> BlockReplayer:
        for chain in self._chains:
            chain.install()
        self._recorder.on_free = self._on_free
        return self

    def __exit__(self, *error: object) -> None:
        self._recorder.on_free = None
        for chain in self._chains:
            chain.remove()

    def _on_free(self, storage: int) -> None:
        for chain in self._chains:
            chain.mirror_free(storage)

    @property
    def active(self) -> bool:
        """Whether a block was not run."""
        return any(call.replayed for chain in self._chains for current in chain.passes for call in current.calls)

    def check(self) -> None:
        """Raises `ReplayInvalidError` if a template turns out not to stand for its chain."""
        for chain in self._chains:
            chain.check()


def _alike(blocks: list[torch.nn.Module], uses: Counter[int]) -> bool:
    """No parameter is shared or stepped from a hook; the same code runs in all (an option may wrap every other one)."""
    if len({getattr(block.forward, "__code__", None) for block in blocks}) > 1:
        return False
    parameters = [p for block in blocks for p in block.parameters()]
    return not any(uses[id(p)] > 1 or p._post_accumulate_grad_hooks for p in parameters)
