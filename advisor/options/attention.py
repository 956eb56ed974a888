"""Attention whose scores are never held: `F.scaled_dot_product_attention` instead of softmax(q k^T) v written out.

Effect: removes 5 a s^2 b bytes a layer with dropout in 16 bits (MEM-2, Korthikanti 2022, arXiv:2205.05198); 10x less
attention memory at 2k tokens, 20x at 4k, and faster (Dao 2022, arXiv:2205.14135, repository README).

Found in the trace: a softmax over an s x t matrix made by a batched product and read by one, in one module. Switched
on for Hugging Face models (`config._attn_implementation`) and timm (`fused_attn`); other code has to be changed by
hand, and `why_not` says how much that would free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.errors import UsageError
from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.trace.records import Category, OpRecord, TensorRef
from advisor.units import format_bytes
from advisor.workload.spec import Workload

_BATCHED_PRODUCTS = ("aten.bmm.", "aten.baddbmm.")


class Attention(Option):
    name = "attention"
    order = 20
    title = "Attention implementation"

    def values(self, facts: Facts) -> Sequence[str]:
        if _has_switch(facts) and _materialised(facts):
            return ("as-written", "sdpa")
        return ("as-written",)

    def why_not(self, facts: Facts) -> str | None:
        found = _materialised(facts)
        if not found:
            return "no attention in the trace writes its scores out"
        if _has_switch(facts):
            return None
        held = format_bytes(sum(each.nbytes for each in found))
        return (
            f"{len(found)} modules ({found[0].module}, ...) hold {held} of attention scores until backward; "
            "F.scaled_dot_product_attention would free that, but this code has no switch for it: change it by hand"
        )

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "as-written":
            return workload
        if value != "sdpa":
            raise unknown_value(self, value, ("as-written", "sdpa"))

        def build_model() -> Any:
            model = workload.build_model()
            _switch(model)
            return model

        return replace(workload, build_model=build_model)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        return _SNIPPET if value == "sdpa" else ""


@dataclass(frozen=True, slots=True)
class _Materialised:
    """An attention whose scores are written out."""

    module: str
    nbytes: int  # of the matrices of scores it holds until backward


def _materialised(facts: Facts) -> list[_Materialised]:
    types = {module.name: module.type_name for module in facts.trace.modules}
    ops = facts.forward_ops()
    found: dict[str, _Materialised] = {}
    for index, op in enumerate(ops):
        if not op.name.startswith("aten._softmax.") or not op.outputs or len(op.outputs[0].shape) < 3:
            continue
        module = op.module.rpartition(".")[0] if types.get(op.module) == "Softmax" else op.module
        if module not in found and _between_products(ops, index, module):
            found[module] = _Materialised(module, _held_bytes(facts, ops, op, module))
    return list(found.values())


def _inside(op: OpRecord, module: str) -> bool:
    return op.module == module or op.module.startswith(f"{module}.") or not module


def _between_products(ops: list[OpRecord], index: int, module: str) -> bool:
    scores = ops[index].outputs[0]
    size = scores.numel, scores.shape[-1:]

    def products(span: list[OpRecord]) -> list[OpRecord]:
        return [op for op in span if op.name.startswith(_BATCHED_PRODUCTS) and _inside(op, module)]

    def holds_scores(refs: tuple[TensorRef, ...]) -> bool:
        return any((ref.numel, ref.shape[-1:]) == size for ref in refs)

    made = any(holds_scores(op.outputs) for op in products(ops[:index]))
    return made and any(holds_scores(op.inputs) for op in products(ops[index + 1 :]))


def _held_bytes(facts: Facts, ops: list[OpRecord], softmax: OpRecord, module: str) -> int:
    numel = softmax.outputs[0].numel
    storages = {ref.storage for op in ops if _inside(op, module) for ref in op.outputs if ref.numel == numel}
    records = [facts.trace.storages[storage] for storage in storages]
    return sum(record.nbytes for record in records if record.category is Category.ACTIVATION)


def _has_switch(facts: Facts) -> bool:
    """The tracer records `fused_attn` of timm's modules and `attn_implementation` of a Hugging Face config."""
    switches = {("fused_attn", False), ("attn_implementation", "eager")}
    return any(not switches.isdisjoint(module.attributes) for module in facts.trace.modules)


def _switch(model: Any) -> None:
    switched = False
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "_attn_implementation", None) == "eager" and getattr(module, "_supports_sdpa", True):
            config._attn_implementation = "sdpa"
            switched = True
        if getattr(module, "fused_attn", None) is False:
            module.fused_attn = True
            switched = True
    if not switched:
        raise UsageError(
            "attention=sdpa: the model has no switch for it (neither a Hugging Face config nor timm's fused_attn)",
            hint="call F.scaled_dot_product_attention in the model's own code",
        )


_SNIPPET = """\
model.config._attn_implementation = "sdpa"  # Hugging Face; or from_pretrained(..., attn_implementation="sdpa")
# timm: module.fused_attn = True; your own code: F.scaled_dot_product_attention(q, k, v, is_causal=True)
"""
OPTION = Attention()
