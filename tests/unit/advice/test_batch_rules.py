import math

import pytest

from advisor.advice import batch_rules as rules
from advisor.errors import UsageError


def test_linear_rule():
    assert rules.linear_learning_rate(0.1, k=8192 / 256) == pytest.approx(3.2)


def test_square_root_rule():
    assert rules.sqrt_learning_rate(3e-4, k=8) == pytest.approx(8.485e-4, rel=1e-4)


def test_adam_sde_rule():
    scaled = rules.adam_sde(1e-3, beta1=0.9, beta2=0.999, eps=1e-8, k=2)
    assert scaled == pytest.approx((1.41421e-3, 0.8, 0.998, 7.0711e-9), rel=1e-4)


@pytest.mark.parametrize("k", [10.5, 16])
def test_adam_sde_rule_has_no_solution_for_a_large_ratio(k):
    with pytest.raises(UsageError, match="less than 10 times"):
        rules.adam_sde(1e-3, beta1=0.9, beta2=0.999, eps=1e-8, k=k)


def test_gain():
    factor = rules.gain(256, k=8, noise_scale=4000)
    assert factor == pytest.approx(5.62963, rel=1e-5)
    assert math.sqrt(factor) == pytest.approx(2.37268, rel=1e-5)


def test_gain_tends_to_the_linear_rule_and_to_one():
    assert rules.gain(1, k=8, noise_scale=1e9) == pytest.approx(8, rel=1e-6)
    assert rules.gain(1, k=8, noise_scale=math.inf) == 8
    assert rules.gain(1e9, k=8, noise_scale=1) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("ratio, share", [(0.25, 0.8), (1, 1.0), (4, 0.8)])
def test_surge(ratio, share):
    assert rules.surge(ratio, noise_scale=1) == pytest.approx(share)


def test_half_life_of_beta2():
    beta2 = rules.half_life_beta2(0.95, k=8)
    assert beta2 == pytest.approx(0.663420, rel=1e-6)
    half_life_old, half_life_new = (math.log(0.5) / math.log(beta) for beta in (0.95, beta2))
    assert half_life_old == pytest.approx(13.51, abs=0.005)
    assert half_life_new * 8 == pytest.approx(half_life_old)


def test_ema_decay():
    assert rules.ema_decay(0.9999, k=8) == pytest.approx(0.9992003, abs=5e-8)


@pytest.mark.parametrize("factor, decay", [(math.sqrt(8), 0.282843), (1, 0.8)])
def test_timescale_weight_decay(factor, decay):
    assert rules.timescale_weight_decay(0.1, k=8, learning_rate_factor=factor) == pytest.approx(decay, rel=1e-5)


def test_optimal_weight_decay():
    assert rules.optimal_timescale(20) == pytest.approx(0.223556, rel=1e-5)
    assert rules.optimal_timescale(1000) == pytest.approx(0.02845, rel=1e-3)
    decay = rules.optimal_weight_decay(2**21, learning_rate=2e-4, tokens=3e11, parameters=1.4e9)
    assert decay == pytest.approx(0.545611, rel=1e-5)


@pytest.mark.parametrize("beta2, steps", [(0.999, 2000), (0.95, 40)])
def test_least_warmup(beta2, steps):
    assert rules.least_warmup_steps(beta2) == pytest.approx(steps)


def test_step_law():
    assert rules.step_law(1e9, 1e11) == pytest.approx((1.63250e-3, 1.10771e6), rel=1e-4)
    assert rules.step_law(7e9, 1.4e12) == pytest.approx((9.17e-4, 4.999e6), rel=1e-3)


@pytest.mark.parametrize("flops, expected", [(1e17, (2.33817e-3, 1.0619e5)), (1e20, (9.85998e-4, 1.01714e6))])
def test_deepseek_law(flops, expected):
    assert rules.deepseek_law(flops) == pytest.approx(expected, rel=1e-4)


def test_optimal_batch_of_a_language_model():
    assert rules.power_lines_batch(2e10) == pytest.approx(5.52517e5, rel=1e-4)
    low, high = rules.optimal_batch_range(1e12)
    assert (low, high) == pytest.approx((2.5e6, 4.1e6), rel=0.02)
    assert rules.optimal_batch(1e12) == pytest.approx(math.sqrt(low * high))
    assert rules.optimal_batch(50e9) == pytest.approx(rules.power_lines_batch(50e9), rel=0.05)


def test_steps_per_epoch():
    assert rules.steps_per_epoch(1_281_167, num_replicas=8, micro_batch_size=32) == 5005


def test_steps_to_the_same_loss():
    left, needed = rules.steps_to_same_loss(10_000, batch=0.5e6, k=16, critical_batch=4e6)
    assert (left, needed) == pytest.approx((625, 1666.667), rel=1e-5)
    assert needed / left == pytest.approx(2.6667, rel=1e-4)


def test_clip_norm_ratio():
    assert rules.clip_norm_ratio(256, k=8, noise_scale=4000) == pytest.approx(0.421464, rel=1e-5)


@pytest.mark.parametrize("old, new, rate", [(0.25e6, 4e6, 1.41421e-3), (2e6, 0.25e6, 7.07107e-4), (1e6, 4e6, 1e-3)])
def test_capped_square_root(old, new, rate):
    assert 1e-3 * rules.capped_sqrt_factor(old, new_batch=new, cap=0.5e6) == pytest.approx(rate, rel=1e-5)
