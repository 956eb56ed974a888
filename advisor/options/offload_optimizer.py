"""Optimizer states live in host memory and the host does the step.

Effect: -8 bytes a parameter for float32 Adam; gradients cross to the host and parameters back (MEM-6). torchao's
CPUOffloadOptimizer on ViT-g (1.1e9 parameters, pure bf16): 9.82 -> 5.24 GB, 1.27 -> 1.52 s a step; the host's own step
costs more than the link. No clipping by the global norm, no plain learning-rate scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.trace.records import Category
from advisor.workload.spec import Workload


class OffloadOptimizer(Option):
    name = "offload_optimizer"
    order = 85
    title = "Optimizer offload"

    def values(self, facts: Facts) -> Sequence[str]:
        return ("off", "on") if self.why_not(facts) is None else ("off",)

    def why_not(self, facts: Facts) -> str | None:
        if facts.device.device_type in ("cpu", "mps"):
            return f"{facts.device.title} computes in host memory already"
        if facts.device.host_bandwidth is None:
            return f"the profile of {facts.device.title} states no bandwidth to the host"
        on_device = (s for s in facts.trace.storages if s.category is Category.OPTIMIZER_STATE and not s.on_host)
        if not any(on_device):
            return f"{facts.trace.optimizer.type_name} keeps no state on the device"
        return None

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "off":
            return workload
        if value != "on":
            raise unknown_value(self, value, ("off", "on"))
        return workload.with_execution(offload_optimizer_states=True)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        return _SNIPPET.format(optimizer=names.optimizer_class) if value == "on" else ""


_SNIPPET = """\
from torchao.optim import CPUOffloadOptimizer  # pip install torchao

optimizer = CPUOffloadOptimizer(model.parameters(), {optimizer}, lr=lr, fused=True)
"""
OPTION = OffloadOptimizer()
