"""Adam and AdamW whose two moments are stored in 8 bits, 4 bits or FP8, block by block; arithmetic in float32.

State bytes per parameter: 8-bit 2 + 2*4/256 = 2.031, 4-bit 1 + 2*4/128 = 1.063, FP8 2.031, against 8 in float32
(MEM-5). Block sizes, level tables and what stays unquantised (under 4096 elements, or no whole blocks) are those of
torchao.optim, after Dettmers 2021 (arXiv:2110.02861) and Li 2023 (arXiv:2309.01507).

Known limitations: one update is one operator, as torchao's compiled kernel is, so its trace and its price are right;
run for real it is a chain of plain PyTorch kernels, slower than torchao's. No AMSGrad, no sparse gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from advisor.errors import UsageError
from advisor.workload.techniques.codebooks import dequantise, dynamic_levels, linear_levels, pack, quantise, unpack

SMALLEST_QUANTISED_NUMEL = 4096  # torchao and bitsandbytes
_CHUNK = 1 << 20  # elements updated at a time: bounds the float32 temporaries of a real run


@dataclass(frozen=True, slots=True)
class StateFormat:
    """How a moment is stored."""

    bits: int
    block: int
    dtype: torch.dtype = torch.uint8


FORMATS = {
    "8bit": StateFormat(bits=8, block=256),
    "4bit": StateFormat(bits=4, block=128),
    "fp8": StateFormat(bits=8, block=256, dtype=torch.float8_e4m3fn),
}


class QuantisedAdam(torch.optim.Optimizer):
    """Adam (`decoupled=False`) or AdamW with quantised moments."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = True,
        state_format: str = "8bit",
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "decoupled": decoupled,
                "state_format": state_format,
            },
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0  # a plain number: bias correction needs no tensor, and the host no wait
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment], state[f"{moment}_scale"] = _zero_moment(parameter, FORMATS[group["state_format"]])
        state["step"] += 1
        assert parameter.grad is not None
        beta1, beta2 = group["betas"]
        torch.ops.advisor._fused_adam_quantised_(
            parameter.detach(),
            parameter.grad,
            state["exp_avg"],
            state["exp_avg_sq"],
            state["exp_avg_scale"],
            state["exp_avg_sq_scale"],
            group["state_format"],
            float(group["lr"]),
            beta1,
            beta2,
            group["eps"],
            group["weight_decay"],
            group["decoupled"],
            state["step"],
        )


def from_adam(optimizer: torch.optim.Optimizer, state_format: str) -> QuantisedAdam:
    """The same groups and hyperparameters as torch's Adam or AdamW, with quantised moments."""
    if not isinstance(optimizer, torch.optim.Adam):
        raise UsageError(
            f"optimizer_state=adam-{state_format}: the optimizer is {type(optimizer).__name__}, not Adam or AdamW",
            hint="leave optimizer_state as it is",
        )
    kept = ("params", "lr", "betas", "eps", "weight_decay")
    groups = []
    for group in optimizer.param_groups:
        if group["amsgrad"] or group["maximize"]:
            raise UsageError(f"optimizer_state=adam-{state_format}: AMSGrad and maximize are not supported")
        decoupled = isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay", False)
        groups.append({**{key: group[key] for key in kept}, "decoupled": decoupled})
    return QuantisedAdam(groups, state_format=state_format)


def _zero_moment(parameter: Tensor, form: StateFormat) -> tuple[Tensor, Tensor | None]:
    """Codes and scales of an all-zero moment; a plain tensor and no scales where it stays unquantised."""
    numel = parameter.numel()
    if numel < SMALLEST_QUANTISED_NUMEL or numel % form.block:
        return torch.zeros_like(parameter), None
    codes = torch.zeros(numel * form.bits // 8, dtype=form.dtype, device=parameter.device)
    return codes, torch.zeros(numel // form.block, device=parameter.device)


def _levels(form: StateFormat, *, signed: bool) -> tuple[float, ...]:
    if form.bits == 8:
        return dynamic_levels(signed=signed, bits=8, exponents=7)
    return dynamic_levels(signed=True, bits=4, exponents=3) if signed else linear_levels(4)


def _load(codes: Tensor, scale: Tensor | None, form: StateFormat, *, signed: bool) -> Tensor:
    if scale is None:
        return codes.float()
    if form.dtype.is_floating_point:
        return (codes.float().view(-1, form.block) * scale.unsqueeze(1)).view(-1)
    return dequantise(unpack(codes) if form.bits == 4 else codes, _levels(form, signed=signed), scale)


def _store(moment: Tensor, codes: Tensor, scale: Tensor | None, form: StateFormat, *, signed: bool) -> None:
    if scale is None:
        codes.copy_(moment)
    elif form.dtype.is_floating_point:
        blocks = moment.view(-1, form.block)
        scale.copy_(blocks.abs().amax(1).clamp_(min=1e-12) / torch.finfo(form.dtype).max)
        codes.copy_((blocks / scale.unsqueeze(1)).view(-1))
    else:
        new_codes, new_scale = quantise(moment, _levels(form, signed=signed), block=form.block)
        codes.copy_(pack(new_codes) if form.bits == 4 else new_codes)
        scale.copy_(new_scale)


@torch.library.custom_op(
    "advisor::_fused_adam_quantised_",
    mutates_args=("parameter", "first", "second", "first_scale", "second_scale"),
)
def _fused_adam_quantised_(
    parameter: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    first_scale: Tensor | None,
    second_scale: Tensor | None,
    state_format: str,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    step: int,
) -> None:
    """One Adam update (Kingma & Ba 2014; decoupled: Loshchilov & Hutter 2017) of one parameter, chunk by chunk."""
    form = FORMATS[state_format]
    flat, flat_gradient = parameter.reshape(-1), gradient.reshape(-1)
    correction1, correction2 = 1 - beta1**step, 1 - beta2**step
    per_code = 2 if first_scale is not None and form.bits == 4 else 1
    first_flat, second_flat = first.reshape(-1), second.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        elements = slice(start, start + _CHUNK)
        codes = slice(start // per_code, (start + _CHUNK) // per_code)
        blocks = slice(start // form.block, (start + _CHUNK) // form.block)
        scale1 = None if first_scale is None else first_scale[blocks]
        scale2 = None if second_scale is None else second_scale[blocks]
        weights, g = flat[elements].float(), flat_gradient[elements].float()
        if decoupled:
            weights = weights * (1 - lr * weight_decay)
        else:
            g = g + weight_decay * weights
        exp_avg = _load(first_flat[codes], scale1, form, signed=True).lerp_(g, 1 - beta1)
        exp_avg_sq = _load(second_flat[codes], scale2, form, signed=False).lerp_(g.square(), 1 - beta2)
        _store(exp_avg, first_flat[codes], scale1, form, signed=True)
        _store(exp_avg_sq, second_flat[codes], scale2, form, signed=False)
        denominator = exp_avg_sq.sqrt().div_(math.sqrt(correction2)).add_(eps)
        flat[elements] = weights.addcdiv_(exp_avg, denominator, value=-lr / correction1).to(flat.dtype)
    for tensor, flattened in ((parameter, flat), (first, first_flat), (second, second_flat)):
        if flattened.data_ptr() != tensor.data_ptr():  # channels_last: the flat one is a copy
            tensor.copy_(flattened.view(tensor.shape))


@_fused_adam_quantised_.register_fake
def _(*args: object) -> None:
    return None
