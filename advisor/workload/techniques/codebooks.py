"""Block-wise quantisation to a table of levels: 8-bit and 4-bit optimizer states, NF4 weights.

Each block of elements is divided by its largest magnitude (its scale) and every element takes the code of the nearest
level (Dettmers 2021, 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861, section 2).
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from statistics import NormalDist

import torch
from torch import Tensor

_SMALLEST_SCALE = 1e-12  # a block of zeros must not divide by zero


@cache
def dynamic_levels(*, signed: bool, bits: int, exponents: int) -> tuple[float, ...]:
    """Dynamic tree levels (Dettmers 2015, 8-Bit Approximations for Parallelism in Deep Learning, arXiv:1511.04561).

    Decade e of `exponents` ends at 10**(e - exponents + 1) and is cut into 2**e equal parts per sign (twice as many
    without a sign); a level is the middle of a part. With 0 and 1 that makes 2**bits levels.
    """
    levels = [0.0, 1.0]
    for exponent in range(exponents):
        parts = 2**exponent if signed else 2 ** (exponent + 1)
        decade = 10.0 ** (exponent - exponents + 1)
        middles = [decade * (0.1 + 0.9 * (part + 0.5) / parts) for part in range(parts)]
        levels += middles + [-middle for middle in middles if signed]
    assert len(levels) == 2**bits
    return tuple(sorted(levels))


@cache
def linear_levels(bits: int) -> tuple[float, ...]:
    """Equal steps from 2**-bits to 1, without a zero: second moments (Li 2023, arXiv:2309.01507)."""
    return tuple((code + 1) / 2**bits for code in range(2**bits))


@cache
def nf4_levels() -> tuple[float, ...]:
    """The 16 NF4 levels: quantiles of the normal distribution, scaled to 1 (Dettmers 2023, QLoRA, arXiv:2305.14314).

    Eight of the positive half with zero left out, seven of the negative one, and an exact zero. The outermost
    probability is the mean of 1 - 1/30 and 1 - 1/32 (half a step from the end of each half), 0.9677083.
    """
    outermost = ((1 - 1 / 30) + (1 - 1 / 32)) / 2
    quantile = NormalDist().inv_cdf
    positive = [quantile(outermost - (outermost - 0.5) * step / 8) for step in range(8)]
    negative = [-quantile(outermost - (outermost - 0.5) * step / 7) for step in range(7)]
    return tuple(sorted(level / positive[0] for level in (*negative, 0.0, *positive)))


def quantise(values: Tensor, levels: tuple[float, ...], *, block: int) -> tuple[Tensor, Tensor]:
    """Codes (uint8, one an element) and scales (float32, one a block) of a flat tensor of whole blocks."""
    blocks = values.float().view(-1, block)
    scale = blocks.abs().amax(1).clamp_(min=_SMALLEST_SCALE)
    middles = [(low + high) / 2 for low, high in pairwise(levels)]
    boundaries = torch.tensor(middles, device=values.device)
    codes = torch.bucketize(blocks / scale.unsqueeze(1), boundaries, out_int32=True)
    return codes.to(torch.uint8).view(-1), scale


def dequantise(codes: Tensor, levels: tuple[float, ...], scale: Tensor) -> Tensor:
    """The float32 values of `codes`."""
    table = torch.tensor(levels, device=codes.device)
    return (table[codes.int()].view(scale.numel(), -1) * scale.unsqueeze(1)).view(-1)


def pack(codes: Tensor) -> Tensor:
    """Two 4-bit codes in a byte."""
    return (codes[0::2] << 4) | codes[1::2]


def unpack(packed: Tensor) -> Tensor:
    """The 4-bit codes of `pack`, one a byte."""
    return torch.stack((packed >> 4, packed & 15), dim=-1).view(-1)


def padded(numel: int, block: int) -> int:
    """`numel` rounded up to whole blocks."""
    return math.ceil(numel / block) * block
