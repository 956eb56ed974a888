"""`torch.compile`: fewer, fused kernels. Measured only: which kernels it makes is not in the trace of the eager step.

Effect elsewhere: torchtune +27 % speed and -15 % memory; torchtitan, Llama 8B, +15.7 % and 82.4 -> 77.0 GiB.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.spec import Workload

_SMALLEST_CAPABILITY = (7, 0)  # Triton (PyTorch documentation, torch.compiler FAQ)


class Compile(Option):
    name = "compile"
    order = 90  # compiles what all the others have made
    title = "torch.compile"

    def values(self, facts: Facts) -> Sequence[str]:
        return ("off", "on") if self.why_not(facts) is None else ("off",)

    def why_not(self, facts: Facts) -> str | None:
        device = facts.device
        if device.device_type in ("cpu", "rocm", "xpu"):
            return None
        if device.device_type == "cuda" and (device.compute_capability or (0, 0)) >= _SMALLEST_CAPABILITY:
            return None
        return f"{device.title} is not known to be a target of torch.compile (CUDA: compute capability 7.0 or more)"

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "off":
            return workload
        if value != "on":
            raise unknown_value(self, value, ("off", "on"))
        return workload.with_execution(compile=True)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        return "model.compile()\n" if value == "on" else ""

    def unpredictable(self, value: str) -> str | None:
        return "compiled kernels are not in the trace: measure it" if value == "on" else None


OPTION = Compile()
