"""When a stopwatch may stop: median, percentiles, and how well the median is known. No torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

LEAST_RUNS = 5
# A median is settled once its 80 % interval lies within this share of it.
TOLERANCE = 0.05
# Half-width of the 80 % interval of a standard normal variable.
_Z = NormalDist().inv_cdf(0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Repeated runs of one thing, in the unit of the samples."""

    median: float
    low: float  # 10th and 90th percentile
    high: float
    num_runs: int
    uncertainty: float | None  # share of the median its 80 % interval reaches to; None: too few runs to say

    @property
    def settled(self) -> bool:
        return self.num_runs >= LEAST_RUNS and self.uncertainty is not None and self.uncertainty <= TOLERANCE


def summarise(samples: Sequence[float]) -> Spread:
    """Median, percentiles and the uncertainty of the median of at least one sample."""
    median = statistics.median(samples)
    deciles = statistics.quantiles(samples, n=10, method="inclusive") if len(samples) > 1 else [median]
    interval = median_interval(samples)
    return Spread(
        median=median,
        low=deciles[0],
        high=deciles[-1],
        num_runs=len(samples),
        uncertainty=None if interval is None else max(median - interval[0], interval[1] - median) / median,
    )


def median_interval(samples: Sequence[float]) -> tuple[float, float] | None:
    """80 % confidence interval of the median, without assuming a distribution: two order statistics.

    Ranks `n/2 -+ z sqrt(n)/2` (Conover 1999, "Practical Nonparametric Statistics", section 3.2). Below 4 samples not
    even the whole range covers the median with 80 %.
    """
    count = len(samples)
    if count < 4:
        return None
    rank = max(round(count / 2 - _Z * math.sqrt(count) / 2), 1)
    ordered = sorted(samples)
    return ordered[rank - 1], ordered[count - rank]
