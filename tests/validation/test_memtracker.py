"""The peak of a trace is that of torch's own memory tracker where both see the same operators."""

from __future__ import annotations

import warnings

import pytest
from validation.trace_speed import TARGETS, by_advisor, by_memtracker, gpt2


@pytest.mark.slow
def test_peak_of_gpt2() -> None:
    """Torch 2.13 and transformers 5.24: equal to the byte (7.936 GiB)."""
    case = gpt2()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracker's own
        expected = by_memtracker(case)
    ours = by_advisor(case, TARGETS["cpu"])
    assert ours.peak_bytes == pytest.approx(expected.peak_bytes, rel=0.03)
