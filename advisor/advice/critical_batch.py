"""Critical batch size: rules CB-1 to CB-8. Where more data parallelism stops paying.

`Bc` follows the 2x rule unless said otherwise: the batch at which the data needed for a loss has doubled. Batches are
in one unit throughout, samples or tokens. `k` = new batch / old batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# CB-6 counts sequences of this many tokens, and steps that exceed linear scaling by this share (Zhang 2024).
_ZHANG_SEQUENCE_TOKENS = 512
ZHANG_EXCESS = 0.2
# CB-7 counts sequences of this many tokens.
_POWER_LINES_SEQUENCE_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNoise:
    """CB-1. One estimate of `tr(Sigma)` and `|G|^2`; average each over steps before dividing."""

    trace: float
    squared_norm: float


def gradient_noise(
    *, small_squared_norm: float, large_squared_norm: float, small_batch: float, large_batch: float
) -> GradientNoise:
    """CB-1. `tr(Sigma) = (gs-gb)/(1/b-1/B)`, `|G|^2 = (B gb - b gs)/(B-b)` from squared gradient norms at two batches.

    `gs` is the mean over micro-batches of size `b`, `gb` that of their mean gradient (size `B`), before clipping.
    Source: McCandlish et al. 2018, arXiv:1812.06162, appendix A.
    """
    trace = (small_squared_norm - large_squared_norm) / (1 / small_batch - 1 / large_batch)
    squared_norm = (large_batch * large_squared_norm - small_batch * small_squared_norm) / (large_batch - small_batch)
    return GradientNoise(trace=trace, squared_norm=squared_norm)


def noise_scale(estimates: Sequence[GradientNoise]) -> float:
    """CB-1. `B_simple`: ratio of the means, never the mean of ratios, in the unit of the batches.

    Infinite where the mean `|G|^2` is not positive: larger than these batches can resolve. A factor-10 estimate of the
    critical batch for SGD and small models (`B_simple/B_crit` ran from 0.05 to 8, McCandlish 2018, table 1), and far
    too low for AdamW language models (Merrill 2025, arXiv:2505.23971).
    """
    squared_norm = math.fsum(estimate.squared_norm for estimate in estimates)
    return math.fsum(estimate.trace for estimate in estimates) / squared_norm if squared_norm > 0 else math.inf


def steps_factor(batch: float, *, critical_batch: float) -> float:
    """CB-2. Steps over the least possible, `S/S_min = 1 + Bc/B` (McCandlish et al. 2018, eq. 2.11)."""
    return 1 + critical_batch / batch


def data_factor(batch: float, *, critical_batch: float) -> float:
    """CB-2. Data over the least possible, `E/E_min = 1 + B/Bc` (McCandlish et al. 2018, eq. 2.12)."""
    return 1 + batch / critical_batch


def speedup(batch: float, *, k: float, critical_batch: float, step_time_ratio: float = 1.0) -> float:
    """CB-3. Time to the same loss, old over new: `(1+Bc/B)/(1+Bc/(kB)) t(1)/t(k)`.

    Weak scaling: `k` times the devices, each with its batch kept. `step_time_ratio` = t(k)/t(1). At a fixed global
    batch there is no such effect.
    """
    steps = steps_factor(batch, critical_batch=critical_batch) / steps_factor(k * batch, critical_batch=critical_batch)
    return steps / step_time_ratio


def data_cost(batch: float, *, k: float, critical_batch: float) -> float:
    """CB-3. Data to the same loss, new over old: `(1+kB/Bc)/(1+B/Bc)`. Device-hours grow by it times t(k)/t(1)."""
    return data_factor(k * batch, critical_batch=critical_batch) / data_factor(batch, critical_batch=critical_batch)


def k_max(batch: float, *, critical_batch: float, waste: float) -> float:
    """CB-4. Largest `k` that wastes at most the share `waste` of data: `((1+waste)(1+B/Bc)-1) Bc/B`."""
    factor = data_factor(batch, critical_batch=critical_batch)
    return ((1 + waste) * factor - 1) * critical_batch / batch


def k_star(losses: Mapping[float, float], *, tolerance: float = 0.01) -> float:
    """Branched training: the largest `k` whose loss is within `tolerance` nats of that of every smaller `k`.

    Source: Merrill et al. 2025, arXiv:2505.23971: branches from one checkpoint at `k` times the batch and `sqrt(k)`
    (Adam) or `k` (SGD) times the learning rate, 2 billion tokens each, smoothed loss.
    """
    return max(k for k in losses if all(losses[k] <= losses[other] + tolerance for other in losses if other < k))


def kaplan_critical_batch(loss: float) -> float:
    """CB-5. Tokens: `2e8 / L**(1/0.21)`, L in nats; superseded.

    Source: Kaplan et al. 2020, arXiv:2001.08361, eq. 1.4.
    """
    return float(2e8 / loss ** (1 / 0.21))


def zhang_critical_batch_at_chinchilla(parameters: float) -> float:
    """CB-6. Sequences of 512 tokens under the 20 % rule, at D = 20 N: `93.20 N_M**0.47`, N in millions.

    Source: Zhang et al. 2024, arXiv:2410.21676.
    """
    return float(93.20 * (parameters / 1e6) ** 0.47)


def zhang_critical_batch_at_fixed_data(parameters: float) -> float:
    """CB-6. Sequences of 512 tokens under the 20 % rule, at D = 3.07 billion: `621.341 N_M**0.087`; source as above."""
    return float(621.341 * (parameters / 1e6) ** 0.087)


def zhang_critical_batch(tokens: float) -> float:
    """CB-6. Sequences of 512 tokens under the 20 % rule: `22.91 D_M**0.47`, D in millions; source as above.

    The coefficient is quoted from memory; at D = 20 N it agrees with the form above within 0.5 %.
    """
    return float(22.91 * (tokens / 1e6) ** 0.47)


def zhang_critical_batch_tokens(tokens: float) -> float:
    """CB-6 in tokens and under the 2x rule: by CB-2 steps exceed linear scaling by `B/Bc`, so `Bc = B_20%/0.2`."""
    return zhang_critical_batch(tokens) * _ZHANG_SEQUENCE_TOKENS / ZHANG_EXCESS


def power_lines_critical_batch(tokens: float) -> float:
    """CB-7. Tokens: `0.0471 D**0.462` sequences of 2,048.

    Source: Bergsma et al. 2025 (Power Lines), arXiv:2505.13738: the exponent; the coefficient is quoted from memory.
    """
    return float(0.0471 * tokens**0.462 * _POWER_LINES_SEQUENCE_TOKENS)


def refitted_critical_batch(tokens: float) -> float:
    """CB-8. Tokens: `37.26 D**0.477`.

    Source: our re-fit of the public Step Law runs (arXiv:2503.04715), 215M to 537M parameters, 4 to 80 billion tokens;
    scatter 15 %.
    """
    return float(37.26 * tokens**0.477)


def critical_batch_range(tokens: float) -> tuple[float, float]:
    """Critical batch of a language model trained on `tokens`, low and high, in tokens: CB-8 and CB-7.

    The exponents agree, the coefficients differ by 2; model size hardly matters. If a decision flips inside the range
    it is undetermined, and branched training (`k_star`) decides it.
    """
    return refitted_critical_batch(tokens), power_lines_critical_batch(tokens)
