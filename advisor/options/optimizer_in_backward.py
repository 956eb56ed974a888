"""Step each parameter as soon as its gradient is there, from a hook in backward, and free the gradient.

Effect: gradients (4 bytes a float32 parameter) never live all at once: ViT-L 6 -> 4 GB (PyTorch tutorial "How to save
memory by fusing the optimizer step into the backward pass"), torchtune -7.3 %, speed about unchanged (+1.4 %).
Same update, but no accumulation, no clipping by the global norm, no GradScaler: each needs all gradients first.
"""

from __future__ import annotations

from collections.abc import Sequence

from advisor.errors import UsageError
from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.spec import Workload


class OptimizerInBackward(Option):
    name = "optimizer_in_backward"
    order = 75  # after precision, which may ask for a GradScaler
    title = "Optimizer step in backward"

    def values(self, facts: Facts) -> Sequence[str]:
        return ("off",) if facts.trace.num_microbatches > 1 else ("off", "on")

    def why_not(self, facts: Facts) -> str | None:
        if (count := facts.trace.num_microbatches) == 1:
            return None
        return f"the step accumulates the gradients of {count} micro-batches"

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "off":
            return workload
        if value != "on":
            raise unknown_value(self, value, ("off", "on"))
        if workload.execution.num_microbatches > 1:
            raise UsageError(
                f"optimizer_in_backward: the step accumulates over {workload.execution.num_microbatches} micro-batches",
                hint="use one micro-batch, or leave optimizer_in_backward off",
            )
        if workload.execution.grad_scaler:
            raise UsageError(
                "optimizer_in_backward: a GradScaler unscales all gradients before the step",
                hint="use precision amp-bf16, or leave optimizer_in_backward off",
            )
        return workload.with_execution(optimizer_in_backward=True)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        return _SNIPPET.replace("OPTIMIZER", names.optimizer_class) if value == "on" else ""


_SNIPPET = """\
optimizers = {p: OPTIMIZER([p], lr=lr, foreach=False) for p in model.parameters()}


def step_and_free(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_and_free)
"""
OPTION = OptimizerInBackward()
