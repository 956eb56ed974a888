"""Scaling efficiency: what a larger number of devices keeps of the speed per device of a smaller one."""

from __future__ import annotations


def strong_efficiency(step_s: float, *, num_devices: int, base_step_s: float, base_num_devices: int) -> float:
    """Fixed global batch: T(N0) * N0 / (T(N) * N)."""
    return base_step_s * base_num_devices / (step_s * num_devices)


def weak_efficiency(rate_per_device: float, *, base_rate_per_device: float) -> float:
    """Fixed batch per device: throughput per device (samples/s or FLOP/s) against that of the base."""
    return rate_per_device / base_rate_per_device
