"""Which of PyTorch's implementations of the user's optimizer runs: a loop, foreach or fused kernels.

Effect: foreach, the default on CUDA, makes temporaries about the size of the parameters (torch.optim documentation,
sizeof(params) more peak memory); the loop needs one parameter's, fused none and is the fastest. Same update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from advisor.errors import UsageError
from advisor.options.base import USUAL_NAMES, Facts, Names, Option, Risk, unknown_value
from advisor.workload.spec import Workload

_VALUES = ("as-is", "fused", "foreach", "for-loop")
# torch.optim, torch 2.13
_FOREACH = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
_FUSED = ("Adagrad", "Adam", "AdamW", "SGD")


class Optimizer(Option):
    name = "optimizer"
    order = 30
    title = "Optimizer implementation"

    def values(self, facts: Facts) -> Sequence[str]:
        optimizer = facts.trace.optimizer
        if optimizer.implementation == "custom" or optimizer.type_name not in _FOREACH:
            return ("as-is",)
        offered = ["fused"] if optimizer.type_name in _FUSED and facts.device.device_type != "tpu" else []
        offered += ["foreach", "for-loop"]
        return ("as-is", *(value for value in offered if value != optimizer.implementation))

    def why_not(self, facts: Facts) -> str | None:
        if len(self.values(facts)) > 1:
            return None
        return f"{facts.trace.optimizer.type_name} is not one of torch.optim's with several implementations"

    def risk(self, value: str) -> Risk:
        return Risk.NOTHING

    def apply(self, workload: Workload, value: str) -> Workload:
        if value == "as-is":
            return workload
        if value not in _VALUES:
            raise unknown_value(self, value, _VALUES)

        def make_optimizer(model: Any) -> Any:
            return _with_implementation(workload.make_optimizer(model), value)

        return replace(workload, make_optimizer=make_optimizer)

    def snippet(self, value: str, names: Names = USUAL_NAMES) -> str:
        if value == "as-is":
            return ""
        flag = {"fused": "fused=True", "foreach": "foreach=True", "for-loop": "foreach=False"}[value]
        return f"optimizer = {names.optimizer_class}(model.parameters(), lr=lr, {flag})  # and your other settings\n"


def _with_implementation(optimizer: Any, value: str) -> Any:
    """The same optimizer built again: `fused` is looked at by the constructor too."""
    kind = type(optimizer)
    legal = _FUSED if value == "fused" else _FOREACH
    if not kind.__module__.startswith("torch.optim.") or kind.__name__ not in legal:
        what = f"optimizer={value}: {kind.__name__} has no such implementation"
        raise UsageError(what, hint="leave optimizer as it is")
    flags = {"foreach": value == "foreach"}
    if kind.__name__ in _FUSED:
        flags["fused"] = value == "fused"
    return kind([{**group, **flags} for group in optimizer.param_groups], **flags)


OPTION = Optimizer()
