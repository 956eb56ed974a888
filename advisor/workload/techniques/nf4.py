"""A frozen weight in 4-bit NormalFloat with doubly quantised scales (Dettmers 2023, QLoRA, arXiv:2305.14314).

Bits per weight: 4 + 8/64 (a scale in 8 bits per block of 64) + 32/(64*256) (a float32 scale per 256 of those) = 4.127.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from advisor.workload.techniques.codebooks import (
    dequantise,
    dynamic_levels,
    nf4_levels,
    pack,
    padded,
    quantise,
    unpack,
)

BLOCK = 64  # weights per scale
SCALE_BLOCK = 256  # scales per scale of scales
_CHUNK_BLOCKS = 1 << 14  # scales decoded at a time (1 Mi weights): bounds the temporaries of a real run


class NF4Weight(nn.Module):
    """Holds a quantised weight; `decode` gives it back."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        num_scales = padded(weight.numel(), BLOCK) // BLOCK
        device = weight.device
        self.register_buffer("codes", torch.empty(num_scales * BLOCK // 2, dtype=torch.uint8, device=device))
        self.register_buffer("scale_codes", torch.empty(num_scales, dtype=torch.uint8, device=device))
        num_groups = padded(num_scales, SCALE_BLOCK) // SCALE_BLOCK
        self.register_buffer("scale_scales", torch.empty(num_groups, device=device))
        self.register_buffer("mean_scale", torch.empty((), device=device))
        with torch.no_grad():
            torch.ops.advisor_nf4.quantize_(*self.buffers(), weight.detach())

    def decode(self, dtype: torch.dtype) -> Tensor:
        weight: Tensor = torch.ops.advisor_nf4.dequantize(*self.buffers(), self.shape, dtype)
        return weight


class _FrozenLinear(torch.autograd.Function):
    """`F.linear` that decodes its weight again in backward instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: NF4Weight, bias: Tensor | None, transposed: bool) -> Tensor:
        ctx.weight, ctx.transposed = weight, transposed
        matrix = weight.decode(input.dtype)
        return nn.functional.linear(input, matrix.t() if transposed else matrix, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = gradients
        matrix = ctx.weight.decode(gradient.dtype)
        return gradient @ (matrix.t() if ctx.transposed else matrix), None, None, None


def frozen_linear(input: Tensor, weight: NF4Weight, bias: Tensor | None, *, transposed: bool) -> Tensor:
    """`input @ weight.T + bias` in the autocast dtype where there is one; `transposed`: the weight is (in, out)."""
    if torch.is_autocast_enabled(input.device.type):
        input = input.to(torch.get_autocast_dtype(input.device.type))
    if bias is not None:
        bias = bias.to(input.dtype)
    output: Tensor = _FrozenLinear.apply(input, weight, bias, transposed)  # type: ignore[no-untyped-call]
    return output


@torch.library.custom_op("advisor_nf4::quantize_", mutates_args=("codes", "scale_codes", "scale_scales", "mean_scale"))
def _quantize_(codes: Tensor, scale_codes: Tensor, scale_scales: Tensor, mean_scale: Tensor, weight: Tensor) -> None:
    flat = nn.functional.pad(weight.reshape(-1).float(), (0, codes.numel() * 2 - weight.numel()))
    scales = torch.empty(scale_codes.numel(), device=weight.device)
    for start in range(0, scales.numel(), _CHUNK_BLOCKS):
        blocks = slice(start, start + _CHUNK_BLOCKS)
        chunk, scales[blocks] = quantise(flat[start * BLOCK :][: _CHUNK_BLOCKS * BLOCK], nf4_levels(), block=BLOCK)
        codes[start * BLOCK // 2 :][: chunk.numel() // 2] = pack(chunk)
    mean_scale.copy_(scales.mean())
    centred = nn.functional.pad(scales - mean_scale, (0, scale_scales.numel() * SCALE_BLOCK - scales.numel()))
    new_codes, new_scales = quantise(centred, _scale_levels(), block=SCALE_BLOCK)
    scale_codes.copy_(new_codes[: scales.numel()])
    scale_scales.copy_(new_scales)


@torch.library.custom_op("advisor_nf4::dequantize", mutates_args=())
def _dequantize(
    codes: Tensor,
    scale_codes: Tensor,
    scale_scales: Tensor,
    mean_scale: Tensor,
    shape: list[int],
    dtype: torch.dtype,
) -> Tensor:
    filled = nn.functional.pad(scale_codes, (0, scale_scales.numel() * SCALE_BLOCK - scale_codes.numel()))
    scales = (dequantise(filled, _scale_levels(), scale_scales) + mean_scale)[: scale_codes.numel()]
    weight = torch.empty(shape, dtype=dtype, device=codes.device)
    flat = weight.view(-1)
    for start in range(0, scales.numel(), _CHUNK_BLOCKS):
        chunk = codes[start * BLOCK // 2 :][: _CHUNK_BLOCKS * BLOCK // 2]
        values = dequantise(unpack(chunk), nf4_levels(), scales[start : start + _CHUNK_BLOCKS])
        target = flat[start * BLOCK :][: values.numel()]
        target.copy_(values[: target.numel()])
    return weight


@_dequantize.register_fake
def _(
    codes: Tensor,
    scale_codes: Tensor,
    scale_scales: Tensor,
    mean_scale: Tensor,
    shape: list[int],
    dtype: torch.dtype,
) -> Tensor:
    return codes.new_empty(shape, dtype=dtype)


def _scale_levels() -> tuple[float, ...]:
    return dynamic_levels(signed=True, bits=8, exponents=7)
