"""Fine-tune low-rank adapters instead of the weights; with `qlora-` the frozen weights are stored in 4 bits.

Effect: gradients and optimizer states only for r * (in + out) numbers a matrix (MEM-7; Hu 2021, arXiv:2106.09685).
torchtune on Llama-3.2-3B: 17.6 -> 8.5 GiB, +18 % speed; QLoRA (Dettmers 2023, arXiv:2305.14314) stores a weight in
4.127 bits: 8.5 -> 4.6 GiB at -2 to -22 % speed. What quality that costs depends on the task.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.spec import Workload

_PATTERN = re.compile(r"(qlora-)?r([1-9]\d*)")
_RANKS = (64, 16, 8)  # from QLoRA's (arXiv:2305.14314, appendix B) down to PEFT's default
_LINEAR_TYPES = ("Linear", "Conv1D")  # Conv1D: Hugging Face's transposed linear layer


class Lora(Option):
    name = "lora"
    order = 40
    title = "Low-rank adapters"

    def values(self, facts: Facts) -> Sequence[str]:
        if self.why_not(facts) is not None:
            return ("none",)
        return ("none", *(f"{prefix}r{rank}" for prefix in ("", "qlora-") for rank in _RANKS))

    def why_not(self, facts: Facts) -> str | None:
        if not facts.fine_tune:
            return "the job is not said to be a fine-tune (--fine-tune)"
        blocks = tuple(f"{name}." for chain in facts.trace.block_chains for name in chain.names)
        if not any(m.type_name in _LINEAR_TYPES and f"{m.name}.".startswith(blocks) for m in facts.trace.modules):
            return "the model has no linear layers in repeated blocks"
        return None

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING if value == "none" else Risk.MODEL

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "none":
            return workload
        match = _PATTERN.fullmatch(value)
        if match is None:
            raise unknown_value(self, value, ("none", "r8", "r16", "r64", "qlora-r16", "qlora-r64", "[qlora-]rRANK"))

        def build_model() -> Any:
            from advisor.workload.techniques.lora import add_adapters

            return add_adapters(workload.build_model(), rank=int(match[2]), quantise=match[1] is not None)

        return replace(workload, build_model=build_model)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        match = _PATTERN.fullmatch(value)
        if match is None:
            return ""
        adapters = _ADAPTERS.format(rank=match[2])
        return adapters if match[1] is None else _QUANTISED + adapters


_ADAPTERS = """\
from peft import LoraConfig, get_peft_model  # pip install peft

model = get_peft_model(model, LoraConfig(r={rank}, lora_alpha={rank}, target_modules="all-linear"))
"""
_QUANTISED = """\
from transformers import AutoModelForCausalLM, BitsAndBytesConfig  # pip install bitsandbytes

quantisation = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
model = AutoModelForCausalLM.from_pretrained(name, quantization_config=quantisation)
"""
OPTION = Lora()
