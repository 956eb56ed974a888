import math

import pytest

from advisor.advice import scaling_laws as laws
from advisor.advice.scaling_laws import BESIROGLU, HOFFMANN

DAY_S = 86_400


@pytest.mark.parametrize(
    "parameters, tokens, loss",
    [(1e9, 2e10, 2.53005), (70e9, 1.4e12, 1.97388), (3e9, 2e10, 2.41663), (3e9, 6e10, 2.29892)],
)
def test_loss(parameters, tokens, loss):
    assert BESIROGLU.loss(parameters, tokens) == pytest.approx(loss, abs=5e-6)


def test_loss_as_printed_by_hoffmann():
    assert HOFFMANN.loss(1e9, 2e10) == pytest.approx(2.58005, abs=5e-6)


def test_compute_optimal():
    parameters, tokens = BESIROGLU.compute_optimal(1e21)
    assert (parameters, tokens) == pytest.approx((2.77846e9, 5.99853e10), rel=1e-5)
    assert tokens / parameters == pytest.approx(21.5894, rel=1e-5)


@pytest.mark.parametrize(
    "tokens_of_3b, tokens_of_1b, flops_ratio", [(2e10, 5.71401e10, 0.952), (6e10, 3.522e11, 1.957)]
)
def test_tokens_to_match_a_larger_model(tokens_of_3b, tokens_of_1b, flops_ratio):
    tokens = BESIROGLU.tokens_to_match(1e9, target_loss=BESIROGLU.loss(3e9, tokens_of_3b))
    assert tokens == pytest.approx(tokens_of_1b, rel=5e-4)
    assert 1e9 * tokens / (3e9 * tokens_of_3b) == pytest.approx(flops_ratio, abs=5e-4)


def test_a_loss_below_the_reach_of_a_size_needs_endless_data():
    assert BESIROGLU.tokens_to_match(1e9, target_loss=2.17) == math.inf


@pytest.mark.parametrize("epochs, worth", [(1, 1), (4, 3.725674), (16, 10.58246)])
def test_repeated_data(epochs, worth):
    assert laws.effective_tokens(1, epochs=epochs) == pytest.approx(worth, rel=1e-6)


@pytest.mark.parametrize(
    "days, losses",
    [(7, {0.3e9: 2.6078, 1e9: 2.5592, 3e9: 2.6361, 7e9: 2.7829}), (30, {1e9: 2.4003, 3e9: 2.3987, 7e9: 2.4592})],
)
def test_fixed_time_on_one_device(days, losses):
    for parameters, loss in losses.items():
        found = BESIROGLU.loss_in_time(parameters, seconds=days * DAY_S, flops_per_s=1.6e14)
        assert found == pytest.approx(loss, abs=5e-5)


def test_seeds():
    assert laws.seeds_needed(sd=0.004, difference=0.01) == pytest.approx(1.97862, rel=5e-4)
    assert laws.detectable_difference(sd=0.004, num_seeds=3) == pytest.approx(0.0081, abs=5e-5)


def test_acceptable():
    assert laws.acceptable(2.56, target_loss=2.55, standard_error=0.006, tolerance=0.02)
    assert not laws.acceptable(2.56, target_loss=2.55, standard_error=0.0062, tolerance=0.02)
