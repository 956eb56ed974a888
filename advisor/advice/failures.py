"""What failures cost a cluster job: F-1 to F-7. Times in hours unless a name says otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Device-hours per failure: what is assumed, and the range published fleets span."""

    device_hours: float
    low: float
    high: float
    source: str


# Well-run fleets; a small team should use the low end.
PUBLISHED = FailureRate(
    device_hours=50_000,
    low=8_000,
    high=82_000,
    source="Llama 3 405B on 16,384 H100 (arXiv:2407.21783): 50,677; low: measured job MTTF, high: RSC-2, both Kokolis "
    "et al. 2024 (arXiv:2410.21680)",
)


def mean_time_between_failures(device_hours_per_failure: float, *, num_devices: int) -> float:
    """F-1. `M = H/n`: hours between failures of a job on `n` devices."""
    return device_hours_per_failure / num_devices


def checkpoint_interval(stall: float, *, mtbf: float) -> float:
    """F-2. `sqrt(2 delta M)`: hours between checkpoints of least waste.

    `delta` = hours training waits for a checkpoint. Source: Young 1974 (quoted from memory).
    """
    return math.sqrt(2 * stall * mtbf)


def daly_checkpoint_interval(stall: float, *, mtbf: float) -> float:
    """F-3. Higher order: `sqrt(2 delta M)(1 + x/3 + x**2/9) - delta`, `x = sqrt(delta/(2M))`; `M` if `delta >= 2M`.

    Source: Daly 2006 (quoted from memory).
    """
    if stall >= 2 * mtbf:
        return mtbf
    x = math.sqrt(stall / (2 * mtbf))
    return checkpoint_interval(stall, mtbf=mtbf) * (1 + x / 3 + x * x / 9) - stall


def failure_waste(*, stall: float, interval: float, restart: float, mtbf: float) -> float:
    """F-4. Share of time lost, `delta/tau + (tau/2 + R)/M`; `R` = detection and restart. Holds well below 1."""
    return stall / interval + (interval / 2 + restart) / mtbf


def expected_effective_time_ratio(
    num_nodes: int, *, failures_per_node_day: float, restart_days: float, interval_days: float, stall_days: float
) -> float:
    """F-5. `(1 - nodes rf (u0 + dt/2))/(1 + w/dt)`, times in days. Source: Kokolis et al. 2024, arXiv:2410.21680."""
    lost = num_nodes * failures_per_node_day * (restart_days + interval_days / 2)
    return (1 - lost) / (1 + stall_days / interval_days)


def failure_probability(device_hours: float, *, device_hours_per_failure: float) -> float:
    """F-6. Chance of at least one failure in the whole job: `1 - exp(-device_hours/H)`."""
    return -math.expm1(-device_hours / device_hours_per_failure)


def job_cost_usd(
    *,
    num_devices: int,
    price_usd_per_hour: float,
    ideal_hours: float,
    waste: float,
    scaling_efficiency: float,
    data_cost: float = 1.0,
    num_spare_devices: int = 0,
) -> float:
    """F-7. `n price T/((1-waste) efficiency) data_cost`, with spare devices held for as long.

    `price_usd_per_hour` is per device; `data_cost` is CB-3 (1 at an unchanged global batch). Spare capacity seen: BLOOM
    kept 32 of 416 devices idle in reserve.
    """
    hours = ideal_hours / ((1 - waste) * scaling_efficiency) * data_cost
    return (num_devices + num_spare_devices) * price_usd_per_hour * hours
