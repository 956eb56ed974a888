import math

import pytest

from advisor.measure.spread import median_interval, summarise


def coverage(count, rank):
    """Chance that the median lies between the order statistics `rank` and `count + 1 - rank`."""
    return 1 - 2 * sum(math.comb(count, i) for i in range(rank)) / 2**count


@pytest.mark.parametrize("count", range(4, 200))
def test_the_interval_covers_the_median_with_80_percent(count):
    low, high = median_interval([float(i) for i in range(1, count + 1)])
    assert high == count + 1 - low
    assert coverage(count, round(low)) >= 0.79
    assert coverage(count, round(low) + 1) < 0.88  # and is not wider than need be


def test_too_few_runs_say_nothing_about_the_median():
    assert median_interval([1.0, 2.0, 3.0]) is None
    assert summarise([1.0, 1.0, 1.0]).uncertainty is None
    assert not summarise([1.0, 1.0, 1.0]).settled


def test_summary():
    spread = summarise([float(i) for i in range(1, 12)])
    assert (spread.median, spread.low, spread.high, spread.num_runs) == (6.0, 2.0, 10.0, 11)
    assert spread.uncertainty == pytest.approx((9 - 6) / 6)  # order statistics 3 and 9


def test_one_run():
    spread = summarise([2.0])
    assert (spread.median, spread.low, spread.high, spread.num_runs) == (2.0, 2.0, 2.0, 1)


@pytest.mark.parametrize("last, settled", [(1.04, True), (1.06, False)])
def test_five_runs_within_five_percent_settle(last, settled):
    assert summarise([1.0, 1.0, 1.0, 1.0, last]).settled is settled


def test_four_equal_runs_are_not_enough():
    assert not summarise([1.0] * 4).settled
