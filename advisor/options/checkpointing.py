"""Activation checkpointing: repeated blocks keep only their input and run forward again in backward.

Effect per transformer layer in 16 bits, s*b*h units (MEM-2, Korthikanti 2022, arXiv:2205.05198): everything kept 34 +
5as/h, selective 34, full 2. Price: one more forward of the recomputed blocks, measured 21 % of tokens/s (torchtune) to
36-39 % of a layer's time (Korthikanti, table 4); selective 4-7 %. Same gradients.

`every-k` recomputes every k-th block. `selective` keeps what matrix products, convolutions and attention put out and
recomputes the rest, and with it attention scores that the model materialises.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.spec import Workload

_EVERY = re.compile(r"every-([2-9]|[1-9]\d+)")
_LARGEST_EVERY = 4  # every fourth block saves at most a quarter: beyond, the search gains nothing
_PRODUCTS = ("aten.mm.", "aten.addmm.", "aten.convolution.", "aten.bmm.", "aten.baddbmm.")


class Checkpointing(Option):
    name = "checkpointing"
    order = 70  # blocks are wrapped as they will run
    title = "Activation checkpointing"

    def values(self, facts: Facts) -> Sequence[str]:
        longest = max((len(chain.names) for chain in facts.trace.block_chains), default=0)
        if not longest:
            return ("none",)
        values = ["none"] if _overwrites_a_product(facts) else ["none", "selective"]
        return [*values, *(f"every-{k}" for k in range(min(_LARGEST_EVERY, longest), 1, -1)), "all"]

    def why_not(self, facts: Facts) -> str | None:
        if facts.trace.block_chains:
            return None
        return "the model has no repeated blocks in a ModuleList or Sequential"

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "none":
            return workload
        every = _EVERY.fullmatch(value)
        if value not in ("selective", "all") and not every:
            raise unknown_value(self, value, ("none", "selective", "all", "every-2", "every-3", "every-K"))

        def build_model() -> Any:
            from advisor.workload.techniques.checkpointing import checkpoint_blocks

            step = int(every[1]) if every else 1
            return checkpoint_blocks(workload.build_model(), every=step, selective=value == "selective")

        return replace(workload, build_model=build_model)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        if value == "none":
            return ""
        every = _EVERY.fullmatch(value)
        blocks = f"{names.blocks}[::{every[1]}]" if every else names.blocks
        return (_SELECTIVE if value == "selective" else _FULL).format(blocks=blocks)


def _overwrites_a_product(facts: Facts) -> bool:
    """Whether forward writes in place to what a product put out (`relu_`): torch refuses to keep such an output."""
    made: set[int] = set()
    for op in facts.forward_ops():
        written = {ref.storage for ref in op.outputs}
        if op.name.startswith(_PRODUCTS):
            made |= written
        elif op.name.split(".")[1].endswith("_") and written & made:
            return True
    return False


_FULL = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

chosen = set({blocks})  # the repeated blocks
apply_activation_checkpointing(model, check_fn=lambda module: module in chosen)
"""
_SELECTIVE = """\
from functools import partial

from torch.distributed.algorithms._checkpoint import checkpoint_wrapper
from torch.utils.checkpoint import create_selective_checkpoint_contexts

aten = torch.ops.aten
kept = [
    aten.mm.default,
    aten.addmm.default,
    aten.convolution.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
]
chosen = set({blocks})  # the repeated blocks
context = partial(create_selective_checkpoint_contexts, kept)
checkpoint_wrapper.apply_activation_checkpointing(
    model,
    checkpoint_wrapper_fn=partial(checkpoint_wrapper.checkpoint_wrapper, context_fn=context),
    check_fn=lambda module: module in chosen,
)
"""
OPTION = Checkpointing()
