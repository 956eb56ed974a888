"""What the optimizer remembers: Adam's moments in 8 bits, FP8 or 4 bits, or Adafactor's row and column means.

Effect in bytes per parameter (MEM-5): float32 Adam 8; 8-bit and FP8 2.03 (blocks of 256), 4-bit 1.06 (blocks of 128);
Adafactor 0.008 for a 1000 x 1000 matrix. torchao on ViT-H (0.63e9 parameters): 12.23 GB -> 8.32 GB (8-bit), 7.72 GB
(4-bit), accuracy 94.52 -> 94.30-94.54; speed -9 % to +4 %. Parameters under 4096 elements stay unquantised.
Adafactor (Shazeer & Stern 2018, arXiv:1804.04235) is another optimizer: tune the learning rate again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.spec import Workload

_FORMATS = {"adam-8bit": "8bit", "adam-fp8": "fp8", "adam-4bit": "4bit"}
_VALUES = ("as-is", *_FORMATS, "adafactor")
_FP8_CAPABILITY = (8, 9)  # torchao's AdamFp8: the first with FP8 conversion


class OptimizerState(Option):
    name = "optimizer_state"
    order = 35
    title = "Optimizer state"

    def values(self, facts: Facts) -> Sequence[str]:
        if facts.trace.optimizer.type_name not in ("Adam", "AdamW"):
            return ("as-is",)
        capability = facts.device.compute_capability
        has_fp8 = facts.device.device_type == "cpu" or (capability is not None and capability >= _FP8_CAPABILITY)
        return tuple(value for value in _VALUES if has_fp8 or value != "adam-fp8")

    def why_not(self, facts: Facts) -> str | None:
        if len(self.values(facts)) > 1:
            return None
        return f"known for Adam and AdamW, not for {facts.trace.optimizer.type_name}"

    def risk(self, value: str) -> Risk:
        return {"as-is": Risk.NOTHING, "adafactor": Risk.OPTIMISATION}.get(value, Risk.NUMERICS)

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "as-is":
            return workload
        if value not in _VALUES:
            raise unknown_value(self, value, _VALUES)

        def make_optimizer(model: Any) -> Any:
            from advisor.workload.techniques.adafactor import Adafactor
            from advisor.workload.techniques.quantised_adam import from_adam

            optimizer = workload.make_optimizer(model)
            if value == "adafactor":
                return Adafactor([{"params": group["params"]} for group in optimizer.param_groups])
            return from_adam(optimizer, _FORMATS[value])

        return replace(workload, make_optimizer=make_optimizer)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        if value == "as-is":
            return ""
        if value == "adafactor":
            return "optimizer = torch.optim.Adafactor(model.parameters())  # its own learning-rate scale: tune again\n"
        kind = {"adam-8bit": "AdamW8bit", "adam-fp8": "AdamWFp8", "adam-4bit": "AdamW4bit"}[value]
        return (
            f"from torchao.optim import {kind}  # pip install torchao\n\n"
            f"optimizer = {kind}(model.parameters(), lr=lr, betas=betas, weight_decay=weight_decay)\n"
        )


OPTION = OptimizerState()
