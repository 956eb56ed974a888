"""parse(format(x)) is x, to the digits that are written."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor import units
from advisor.errors import UsageError

# Three digits are written: half a unit of the third at most. Memory has one decimal of a GiB: 0.05 of 1 at worst.
THREE_DIGITS = 0.005
ONE_DECIMAL = 0.05


@pytest.mark.parametrize(
    ("write", "read", "tolerance"),
    [
        (units.format_bytes, units.parse_bytes, ONE_DECIMAL),
        (units.format_bytes_per_s, units.parse_bytes_per_s, THREE_DIGITS),
        (units.format_flops_per_s, units.parse_flops_per_s, THREE_DIGITS),
        (units.format_seconds, units.parse_seconds, THREE_DIGITS),
        (units.format_usd, units.parse_usd, THREE_DIGITS),
        (units.format_usd_per_hour, units.parse_usd_per_hour, THREE_DIGITS),
    ],
)
@given(value=st.integers(min_value=1, max_value=10**18))
def test_round_trip(write, read, tolerance: float, value: int) -> None:
    assert read(write(value)) == pytest.approx(value, rel=1.001 * tolerance)


@given(count=st.integers(min_value=0, max_value=10**15))
def test_counts(count: int) -> None:
    assert units.parse_count(units.format_count(count)) == pytest.approx(count, rel=THREE_DIGITS)


@given(number=st.integers(min_value=0, max_value=10**15))
def test_a_bare_number_is_refused(number: int) -> None:
    for read in (units.parse_bytes, units.parse_bytes_per_s, units.parse_flops_per_s, units.parse_seconds):
        with pytest.raises(UsageError):
            read(str(number))


@given(text=st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (units.parse_bytes, units.parse_seconds, units.parse_count, units.parse_usd):
        with contextlib.suppress(UsageError):
            assert read(text) >= 0
