"""Quantities: what is read, what is refused, how it is written."""

import pytest
import torch

from advisor import units
from advisor.errors import TraceError, UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("80 GiB", 80 * 2**30),
        ("11019MiB", 11019 * 2**20),
        ("80GB", 80 * 10**9),
        ("24gb", 24 * 10**9),
        ("512 B", 512),
        ("79.15 GiB", round(79.15 * 2**30)),
        (" 1.5 TiB ", 3 * 2**39),
    ],
)
def test_bytes(text: str, expected: int) -> None:
    assert units.parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("3.35 TB/s", 3.35e12), ("450 GB/s", 450e9), ("3200 Gbit/s", 400e9), ("1 GiB/s", 2.0**30)]
)
def test_bandwidth(text: str, expected: float) -> None:
    assert units.parse_bytes_per_s(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("989.4 TFLOP/s", 989.4e12), ("1.98PFLOP/s", 1.98e15)])
def test_flop_rate(text: str, expected: float) -> None:
    assert units.parse_flops_per_s(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5d", 432_000),
        ("36h", 129_600),
        ("1d12h", 129_600),
        ("90 min", 5400),
        ("2 weeks", 1_209_600),
        ("1h 30min", 5400),
        ("250 ms", 0.25),
        ("2.5 days", 216_000),
    ],
)
def test_duration(text: str, expected: float) -> None:
    assert units.parse_seconds(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40M", 40_000_000),
        ("1.2e9", 1_200_000_000),
        ("15T", 15_000_000_000_000),
        ("300,000", 300_000),
        ("1_000", 1000),
        ("1.1M", 1_100_000),
        ("7B", 7_000_000_000),
        ("0", 0),
    ],
)
def test_count(text: str, expected: int) -> None:
    assert units.parse_count(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("$5000", 5000), ("5000 USD", 5000), ("$12,400.50", 12_400.5)])
def test_money(text: str, expected: float) -> None:
    assert units.parse_usd(text) == expected


@pytest.mark.parametrize("text", ["2.49 USD/h", "$2.49/h"])
def test_price(text: str) -> None:
    assert units.parse_usd_per_hour(text) == 2.49


@pytest.mark.parametrize(
    ("parse", "text", "found"),
    [
        (units.parse_bytes, "80", "a bare number"),
        (units.parse_bytes, "80 Gb", "in bits"),
        (units.parse_bytes, "3.35 TB/s", "a bandwidth"),
        (units.parse_bytes, "80 G", "unknown unit 'G'"),
        (units.parse_bytes, "-3 GB", "not a number"),
        (units.parse_bytes, "", "not a number"),
        (units.parse_bytes, "1e999999999 GB", "too large"),
        (units.parse_bytes_per_s, "400 Gb/s", "in bits"),
        (units.parse_bytes_per_s, "989.4 TFLOP/s", "a FLOP rate"),
        (units.parse_flops_per_s, "989.4 TB/s", "a bandwidth"),
        (units.parse_flops_per_s, "989 TFLOPS", "unknown unit"),
        (units.parse_flops_per_s, "3350", "a bare number"),
        (units.parse_seconds, "5", "a bare number"),
        (units.parse_seconds, "5 GB", "a memory size"),
        (units.parse_seconds, "1h30m", "minutes or months"),
        (units.parse_seconds, "h5", "not a number"),
        (units.parse_count, "1.5", "not a whole number"),
        (units.parse_count, "3 kg", "unknown unit"),
        (units.parse_usd, "5000", "a bare number"),
        (units.parse_usd_per_hour, "2.49 USD", "an amount of money"),
    ],
)
def test_refused_with_an_example(parse, text: str, found: str) -> None:
    with pytest.raises(UsageError, match=found) as caught:
        parse(text)
    assert "write" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(79.15 * 2**30), "79.2 GiB"),
        (units.format_bytes(532 * 2**20), "532 MiB"),
        (units.format_bytes(2 * 2**40), "2 TiB"),
        (units.format_bytes(-3 * 2**30), "-3.0 GiB"),
        (units.format_bytes(0), "0 B"),
        (units.format_bytes_per_s(3.35e12), "3.35 TB/s"),
        (units.format_bytes_per_s(999_600_000), "1 GB/s"),
        (units.format_flops_per_s(989.4e12), "989 TFLOP/s"),
        (units.format_flops(6.31e15), "6.31 PFLOP"),
        (units.format_seconds(0.0382), "38.2 ms"),
        (units.format_seconds(1.38e-9), "1.38 ns"),
        (units.format_seconds(0), "0 s"),
        (units.format_seconds(0.9999), "1 s"),
        (units.format_seconds(1.3), "1.3 s"),
        (units.format_seconds(9000), "2.5 h"),
        (units.format_seconds(12 * 86_400), "12 days"),
        (units.format_count(8192), "8192"),
        (units.format_count(1_240_000_000), "1.24B"),
        (units.format_usd(4.2), "$4.20"),
        (units.format_usd(12_412.3), "$12,400"),
        (units.format_usd_per_hour(2.49), "$2.49/h"),
        (units.format_percent(0.423), "42 %"),
    ],
)
def test_written(text: str, expected: str) -> None:
    assert text == expected


def test_bytes_of_every_torch_dtype() -> None:
    dtypes = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    assert {str(dtype): units.dtype_bytes(str(dtype).removeprefix("torch.")) for dtype in dtypes} == {
        str(dtype): dtype.itemsize for dtype in dtypes
    }


def test_unknown_dtype() -> None:
    with pytest.raises(TraceError, match=r"torch\.float32"):
        units.dtype_bytes("torch.float32")
