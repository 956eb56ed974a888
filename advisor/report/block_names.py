"""The repeated blocks of a trace as an expression of the user's own model: "model.model.layers"."""

from __future__ import annotations

import re

from advisor.trace.records import BlockChain, StepTrace

_INDEX = re.compile(r"\.(\d+)(?=\.|$)")


def blocks_expression(trace: StepTrace) -> str | None:
    """One expression for all chains; None where the model repeats no block."""
    modules = {module.name for module in trace.modules}
    chains = [_chain(chain, modules) for chain in trace.block_chains]
    if len(chains) < 2:
        return next(iter(chains), None)
    return f"[{', '.join(f'*{chain}' for chain in chains)}]"


def _chain(chain: BlockChain, modules: set[str]) -> str:
    """The list the blocks are in, or the part of it that they are; else each by its name."""
    parents, _, indices = zip(*(name.rpartition(".") for name in chain.names), strict=True)
    if len(set(parents)) > 1 or not all(index.isdigit() for index in indices):
        return f"[{', '.join(_attribute(name) for name in chain.names)}]"
    numbers, parent = [int(index) for index in indices], parents[0]
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        return f"[{', '.join(_attribute(name) for name in chain.names)}]"
    whole = numbers[0] == 0 and f"{parent}.{numbers[-1] + 1}".lstrip(".") not in modules
    return _attribute(parent) + ("" if whole else f"[{numbers[0]}:{numbers[-1] + 1}]")


def _attribute(name: str) -> str:
    path = f".{name}" if name else ""
    return "model" + _INDEX.sub(r"[\1]", path)
