"""Adam, AdamW and SGD for bfloat16 parameters with Kahan summation: what rounding takes off an update is added later.

    c <- c + update;  p' <- p + c;  c <- c + (p - p')    (Zamirai 2020, Revisiting BFloat16 Training, arXiv:2010.06192)

State bytes per parameter: 4 (two bfloat16 moments) + 2 (the compensation), with weight and gradient 10 (MEM-1, the
optimi table). A loop over parameters of plain operators.

Known limitation: the moments are bfloat16 as well, and beta2 = 0.999 times a bfloat16 rounds back to it, so the second
moment forgets late; optimi uses 0.99 by default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from advisor.errors import UsageError


class _Compensated(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["compensation"] = torch.zeros_like(parameter)
                state["step"] += 1
                self._accumulate(parameter, parameter.grad, state, group)
                before = parameter.clone()
                parameter.add_(state["compensation"])
                state["compensation"].add_(before.sub_(parameter))
        return loss

    def _accumulate(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        """Adds this step's update to the compensation."""
        raise NotImplementedError


class CompensatedAdam(_Compensated):
    """Adam (`decoupled=False`) or AdamW."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "decoupled": decoupled}
        super().__init__(params, defaults)

    def _accumulate(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if "exp_avg" not in state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        lr, (beta1, beta2), weight_decay = group["lr"], group["betas"], group["weight_decay"]
        compensation = state["compensation"]
        if weight_decay and group["decoupled"]:
            compensation.add_(parameter, alpha=-lr * weight_decay)  # p * (1 - lr * wd) would round back to p
        elif weight_decay:
            gradient = gradient.add(parameter, alpha=weight_decay)
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        correction1, correction2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        denominator = state["exp_avg_sq"].sqrt().div_(math.sqrt(correction2)).add_(group["eps"])
        compensation.addcdiv_(state["exp_avg"], denominator, value=-lr / correction1)


class CompensatedSGD(_Compensated):
    """SGD with momentum, dampening, Nesterov and coupled weight decay, as `torch.optim.SGD`."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults)

    def _accumulate(self, parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        if momentum := group["momentum"]:
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = gradient.clone()
            else:
                state["momentum_buffer"].mul_(momentum).add_(gradient, alpha=1 - group["dampening"])
            buffer = state["momentum_buffer"]
            gradient = gradient.add(buffer, alpha=momentum) if group["nesterov"] else buffer
        state["compensation"].add_(gradient, alpha=-group["lr"])


_ADAM = ("params", "lr", "betas", "eps", "weight_decay")
_SGD = ("params", "lr", "momentum", "dampening", "weight_decay", "nesterov")


def with_compensation(optimizer: torch.optim.Optimizer) -> CompensatedAdam | CompensatedSGD:
    """The same groups and hyperparameters as torch's Adam, AdamW or SGD, with compensated updates."""
    groups = optimizer.param_groups
    if isinstance(optimizer, torch.optim.Adam) and not any(g["amsgrad"] or g["maximize"] for g in groups):
        adamw = isinstance(optimizer, torch.optim.AdamW)
        return CompensatedAdam(
            [
                {**{key: group[key] for key in _ADAM}, "decoupled": adamw or group.get("decoupled_weight_decay", False)}
                for group in groups
            ]
        )
    if isinstance(optimizer, torch.optim.SGD) and not any(g["maximize"] for g in groups):
        return CompensatedSGD([{key: group[key] for key in _SGD} for group in groups])
    raise UsageError(
        f"precision=bf16-kahan: no compensated form of {type(optimizer).__name__} with these settings",
        hint="it is known for Adam and AdamW without AMSGrad, and for SGD",
    )
