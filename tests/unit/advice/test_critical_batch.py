import math
import random

import pytest

from advisor.advice import critical_batch as critical
from advisor.advice.critical_batch import GradientNoise


def test_gradient_noise():
    noise = critical.gradient_noise(small_squared_norm=10, large_squared_norm=4, small_batch=8, large_batch=64)
    assert noise.trace == pytest.approx(54.85714, rel=1e-6)
    assert noise.squared_norm == pytest.approx(3.142857, rel=1e-6)
    assert critical.noise_scale([noise]) == pytest.approx(17.45455, rel=1e-6)


def test_noise_scale_averages_before_it_divides():
    estimates = [GradientNoise(trace=10, squared_norm=1), GradientNoise(trace=10, squared_norm=4)]
    assert critical.noise_scale(estimates) == pytest.approx(20 / 5)  # the mean of ratios would be 6.25


def test_noise_scale_that_the_batches_cannot_resolve_is_infinite():
    assert critical.noise_scale([GradientNoise(trace=5, squared_norm=-0.1)]) == math.inf


def test_noise_scale_of_simulated_gradients():
    """Gaussian per-example gradients: the estimator finds tr(Sigma)/|G|^2."""
    source = random.Random(0)
    gradient, sd, num_microbatches, per_microbatch = [1.0] * 4, 4.0, 8, 2
    estimates = []
    for _ in range(4000):
        micro = [
            [g + source.gauss(0, sd / math.sqrt(per_microbatch)) for g in gradient] for _ in range(num_microbatches)
        ]
        mean = [sum(column) / num_microbatches for column in zip(*micro, strict=True)]
        estimates.append(
            critical.gradient_noise(
                small_squared_norm=sum(sum(x * x for x in g) for g in micro) / num_microbatches,
                large_squared_norm=sum(x * x for x in mean),
                small_batch=per_microbatch,
                large_batch=per_microbatch * num_microbatches,
            )
        )
    assert critical.noise_scale(estimates) == pytest.approx(sd**2, rel=0.1)  # 4 * 16 / 4


@pytest.mark.parametrize("batch, steps, data", [(250, 5, 1.25), (1000, 2, 2), (4000, 1.25, 5)])
def test_steps_and_data(batch, steps, data):
    assert critical.steps_factor(batch, critical_batch=1000) == pytest.approx(steps)
    assert critical.data_factor(batch, critical_batch=1000) == pytest.approx(data)


@pytest.mark.parametrize(
    "k, speedup, cost", [(2, 1.8, 1.111), (4, 3.0, 1.333), (8, 4.5, 1.778), (16, 6.0, 2.667), (32, 7.2, 4.444)]
)
def test_speedup_and_data_cost(k, speedup, cost):
    assert critical.speedup(0.5e6, k=k, critical_batch=4e6) == pytest.approx(speedup)
    assert critical.data_cost(0.5e6, k=k, critical_batch=4e6) == pytest.approx(cost, rel=1e-3)
    assert critical.speedup(0.5e6, k=k, critical_batch=4e6, step_time_ratio=2) == pytest.approx(speedup / 2)


def test_speedup_has_a_limit():
    assert critical.speedup(0.5e6, k=1e9, critical_batch=4e6) == pytest.approx(9)


def test_k_max():
    assert critical.k_max(0.5e6, critical_batch=4e6, waste=0.2) == pytest.approx(2.8)
    assert critical.data_cost(0.5e6, k=2.8, critical_batch=4e6) == pytest.approx(1.2)


def test_k_star():
    assert critical.k_star({1: 2.600, 2: 2.601, 4: 2.606, 8: 2.630}) == 4


@pytest.mark.parametrize("loss, batch", [(3, 1.06911e6), (2.5, 2.54729e6), (2, 7.37147e6)])
def test_kaplan(loss, batch):
    assert critical.kaplan_critical_batch(loss) == pytest.approx(batch, rel=1e-4)


def test_zhang():
    assert critical.zhang_critical_batch_at_chinchilla(85e6) == pytest.approx(752.04, rel=1e-4)
    assert critical.zhang_critical_batch_at_fixed_data(302e6) == pytest.approx(1021.15, rel=1e-4)
    assert critical.zhang_critical_batch(20e6) == pytest.approx(93.20, rel=6e-3)
    assert critical.zhang_critical_batch(2e10) * 512 == pytest.approx(1.23248e6, rel=1e-4)


@pytest.mark.parametrize(
    "tokens, zhang, power_lines, refitted", [(20e9, 6.16, 5.54, 3.05), (50e9, 9.5, 8.5, 4.8), (100e9, 13.1, 11.7, 6.6)]
)
def test_published_fits_and_ours(tokens, zhang, power_lines, refitted):
    assert critical.zhang_critical_batch_tokens(tokens) == pytest.approx(zhang * 1e6, rel=0.01)
    low, high = critical.critical_batch_range(tokens)
    assert (low, high) == pytest.approx((refitted * 1e6, power_lines * 1e6), rel=0.02)


def test_fits_at_twenty_billion_tokens():
    low, high = critical.critical_batch_range(2e10)
    assert low == pytest.approx(3.05375e6, rel=1e-3)
    assert high == pytest.approx(5.53894e6, rel=1e-4)
