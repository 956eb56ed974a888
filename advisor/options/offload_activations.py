"""Activations wait for backward in host memory.

Effect: what autograd saves leaves the device; each byte crosses the host link twice a step (MEM-6: bytes / bandwidth
each way). torchtune, together with checkpointing and on its own streams: -5.5 % memory at -0.1 % speed. Same gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.spec import Workload


class OffloadActivations(Option):
    name = "offload_activations"
    order = 80
    title = "Activation offload"

    def values(self, facts: Facts) -> Sequence[str]:
        return ("off", "on") if self.why_not(facts) is None else ("off",)

    def why_not(self, facts: Facts) -> str | None:
        if facts.device.device_type in ("cpu", "mps"):
            return f"{facts.device.title} computes in host memory already"
        if facts.device.host_bandwidth is None:
            return f"the profile of {facts.device.title} states no bandwidth to the host"
        return None

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "off":
            return workload
        if value != "on":
            raise unknown_value(self, value, ("off", "on"))
        return workload.with_execution(offload_activations=True)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        return _SNIPPET if value == "on" else ""


_SNIPPET = """\
with torch.autograd.graph.save_on_cpu(pin_memory=True):
    loss = compute_loss(model, batch)
loss.backward()
"""
OPTION = OffloadActivations()
