import itertools
import platform

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
    assert found.software == f"torch {torch.__version__}, Python {platform.python_version()}"
    assert torch.equal(torch.get_rng_state(), random_state)


class Kernel:
    """Takes a fixed time of its own clock."""

    def __init__(self, duration_s):
        self.duration_s = duration_s
        self.now = 0.0
        self.num_calls = 0

    def __call__(self):
        self.now += self.duration_s
        self.num_calls += 1

    def rate(self, *, share_s):
        watch = rates._Watch(clock=lambda: self.now, deadline=share_s, kernels_left=1)
        return watch.rate(self, work=12.0)


def test_a_quick_kernel_is_repeated_until_a_sample_is_long_enough():
    kernel = Kernel(1 / 256)
    assert kernel.rate(share_s=10) == Rate(median=12 * 256, low=12 * 256, high=12 * 256, num_runs=5)
    assert kernel.num_calls == 1 + (1 + 2 + 4 + 8 + 16 + 32) + 4 * 32  # 32/256 s is the first sample above 0.1 s


def test_a_slow_kernel_runs_twice_whatever_the_time():
    kernel = Kernel(4.0)
    assert kernel.rate(share_s=1) == Rate(median=3.0, low=3.0, high=3.0, num_runs=1)
    assert kernel.num_calls == 2


def test_time_not_used_is_left_to_the_other_kernels():
    watch = rates._Watch(clock=lambda: 0.0, deadline=8.0, kernels_left=2)
    assert watch.share_s == 4.0
