import itertools

import pytest
import torch

from advisor.measure import rates
from advisor.measure.rates import Rate, measure_cpu_rates


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(rates, "_STREAM_BYTES", 4096)
    monkeypatch.setattr(rates, "_POINTWISE_BYTES", (1024, 2048))
    monkeypatch.setattr(rates, "_PIXELS", 4)
    monkeypatch.setattr(rates, "_CHAIN_LENGTH", 10)


def test_rates_are_work_over_time(small):
    """A clock that jumps a second at each reading: every sample takes one second."""
    random_state = torch.get_rng_state()
    found = measure_cpu_rates(60, clock=itertools.count().__next__)
    assert found.matmul_float32_flops_per_s.median == found.matmul_bfloat16_flops_per_s.median == 2 * 256**3
    assert found.convolution_flops_per_s.median == 3 * 2 * 8 * 128 * 4 * 4 * 128 * 9
    assert found.copy_bytes_per_s.median == 2 * 4096
    assert found.triad_bytes_per_s.median == 3 * 4096
    assert [(size, rate.median) for size, rate in found.pointwise_bytes_per_s] == [(1024, 3072), (2048, 6144)]
    assert found.operator_overhead_s.median == 1 / 20
    assert found.device.startswith("cpu: ")
    assert (
        found.software == f"torch {torch.__version__}, Python {'.'.join(map(str, __import__('sys').version_info[:3]))}"
    )
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_quick_kernel_is_repeated_until_the_sample_is_long_enough(small):
    """At 1 ms a reading, one kernel is too quick to time: repeats double until 0.1 s, or the share is up."""
    ticks = itertools.count(step=0.001)
    found = measure_cpu_rates(0.5, clock=ticks.__next__)
    assert found.copy_bytes_per_s.median > 2 * 4096 / 0.001


def test_slow_runs_are_low_rates():
    times = iter([0.0, 1.0, 1.0, 3.0, 3.0, 9.0, 9.0])
    watch = rates._Watch(clock=lambda: next(times, 9.0), deadline=5.0, kernels_left=1)
    assert watch.rate(lambda: None, work=12.0) == Rate(median=pytest.approx(6.0), low=6.0, high=6.0, num_runs=1)
