"""Quantities with units: strings in (`parse_*`), strings out (`format_*`). SI base units in between.

A bare number is refused where a unit is due, and so is a unit of another kind: "3.35 TB/s" is no FLOP rate, "80 Gb" is
no memory size. Powers of 1000 are kB, MB, GB, TB; powers of 1024 are KiB, MiB, GiB, TiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType

from advisor.errors import TraceError, UsageError


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of quantity: its units, each with its size in the SI base unit."""

    name: str
    examples: str
    scales: Mapping[str, int | Decimal]
    units: str = ""  # those worth naming to who wrote none


_PREFIXES = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_BYTES = {f"{prefix}B": 1000**power for prefix, power in _PREFIXES.items()} | {
    f"{prefix.upper()}iB": 1024**power for prefix, power in _PREFIXES.items() if prefix
}
_MEMORY = _Kind("a memory size", "'80 GiB', '11019 MiB' or '80 GB'", _BYTES, "MiB, GiB, TiB, MB, GB or TB")
_BANDWIDTH = _Kind(
    "a bandwidth",
    "'3.35 TB/s', '450 GB/s' or '400 Gbit/s'",
    {f"{unit}/s": Decimal(scale) for unit, scale in _BYTES.items()}
    | {f"{prefix}bit/s": Decimal(1000**power) / 8 for prefix, power in _PREFIXES.items()},
)
_FLOP_RATE = _Kind(
    "a FLOP rate",
    "'989.4 TFLOP/s' or '1.98 PFLOP/s'",
    {f"{prefix}FLOP/s": 1000**power for prefix, power in _PREFIXES.items()},
)
_DURATION = _Kind(
    "a duration",
    "'5d', '36h', '1d12h' or '90 min'",
    {"ns": Decimal("1e-9"), "us": Decimal("1e-6"), "ms": Decimal("1e-3")}
    | dict.fromkeys(("s", "sec", "second", "seconds"), 1)
    | dict.fromkeys(("min", "minute", "minutes"), 60)
    | dict.fromkeys(("h", "hour", "hours"), 3600)
    | dict.fromkeys(("d", "day", "days"), 86_400)
    | dict.fromkeys(("w", "week", "weeks"), 604_800),
    "s, min, h, d or w",
)
_COUNT = _Kind("a count", "'40M', '1.2e9', '15T' or '300000'", {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12})
_MONEY = _Kind("an amount of money", "'$5000' or '5000 USD'", {"USD": 1}, "USD, or $ before it")
_PRICE = _Kind("an hourly price", "'2.49 USD/h' or '$2.49/h'", {"USD/h": 1}, "USD/h")
_KINDS = (_MEMORY, _BANDWIDTH, _FLOP_RATE, _DURATION, _COUNT, _MONEY, _PRICE)

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d[\d_]*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_QUANTITY = re.compile(rf"({_NUMBER})\s*(\D*)", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([A-Za-z]+)\s*", re.ASCII)
_DOLLAR = re.compile(rf"\$\s*({_NUMBER})", re.ASCII)
_BIT_UNIT = re.compile(r"[kKMGTPE]b(/s)?")  # "Gb" is a gigabit: never read it as a gigabyte
_LARGEST_EXPONENT = 30  # nothing here is larger; stops "1e999999999" before it becomes an integer

# Bytes of one element, as `torch.dtype.itemsize` says (torch 2.13): sub-byte types take a byte each unless packed.
_DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("complex128",), 16)
    | dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8)
    | dict.fromkeys(("float32", "int32", "uint32", "complex32", "qint32"), 4)
    | dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "bits16"), 2)
    | dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8", "quint4x2", "quint2x4"), 1)
    | dict.fromkeys(("bits8", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2"), 1)
    | {f"float8_{layout}": 1 for layout in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")}
    | {f"{sign}{bits}": 1 for sign in ("int", "uint") for bits in range(1, 8)}
)


def dtype_bytes(dtype: str) -> int:
    """Bytes one element of a torch dtype takes; `dtype` is torch's name without the prefix ("bfloat16")."""
    try:
        return _DTYPE_BYTES[dtype]
    except KeyError:
        raise TraceError(
            f"unknown tensor dtype {dtype!r}", hint="give torch's own name without the prefix, such as 'bfloat16'"
        ) from None


def parse_bytes(text: str) -> int:
    """Memory in bytes: "80 GiB", "11019MiB", "80GB"."""
    return round(_parse(text, _MEMORY))


def parse_bytes_per_s(text: str) -> float:
    """Bandwidth in bytes/s: "3.35 TB/s", "450 GB/s"; network rates in bits too: "400 Gbit/s"."""
    return float(_parse(text, _BANDWIDTH))


def parse_flops_per_s(text: str) -> float:
    """Arithmetic rate in FLOP/s: "989.4 TFLOP/s"."""
    return float(_parse(text, _FLOP_RATE))


def parse_seconds(text: str) -> float:
    """Duration in seconds: "5d", "36h", "1d12h", "90 min", "2.5 days"."""
    stripped = text.strip()
    parts = _DURATION_PART.findall(stripped)
    if not parts or _DURATION_PART.sub("", stripped):
        raise _refusal(stripped, _DURATION)
    if any(unit.lower() == "m" for _, unit in parts):
        raise UsageError(f"{stripped!r} is not clear: 'm' may be minutes or months", hint="write 'min' for minutes")
    return float(sum(_parse(f"{number} {unit}", _DURATION) for number, unit in parts))


def parse_count(text: str) -> int:
    """A whole number: "40M", "1.2e9", "15T", "300,000"; k, M, B, T are powers of 1000."""
    value = _parse(text, _COUNT)
    if value != int(value):
        raise UsageError(f"{text.strip()!r} is not a whole number", hint=f"write a count such as {_COUNT.examples}")
    return int(value)


def parse_usd(text: str) -> float:
    """Money in US dollars: "$5000", "5000 USD"."""
    return float(_parse(_DOLLAR.sub(r"\1 USD", text), _MONEY))


def parse_usd_per_hour(text: str) -> float:
    """A price in US dollars per hour: "2.49 USD/h", "$2.49/h"."""
    return float(_parse(_DOLLAR.sub(r"\1 USD", text), _PRICE))


def format_bytes(num_bytes: float) -> str:
    """Memory in binary units, GiB with one decimal: "79.2 GiB", "532 MiB"."""
    size = abs(num_bytes)
    if size >= 1024**4:
        return f"{_significant(num_bytes / 1024**4)} TiB"
    if size >= 1024**3:
        return f"{num_bytes / 1024**3:.1f} GiB"
    if size >= 1024**2:
        return f"{_significant(num_bytes / 1024**2)} MiB"
    return f"{_significant(num_bytes / 1024)} KiB" if size >= 1024 else f"{_significant(num_bytes)} B"


def format_bytes_per_s(rate: float) -> str:
    """Bandwidth in decimal units: "3.35 TB/s"."""
    return f"{_with_prefix(rate)}B/s"


def format_flops_per_s(rate: float) -> str:
    """Arithmetic rate: "989 TFLOP/s"."""
    return f"{_with_prefix(rate)}FLOP/s"


def format_flops(count: float) -> str:
    """A number of FLOPs (1 multiply-add = 2): "6.3 PFLOP"."""
    return f"{_with_prefix(count)}FLOP"


def format_seconds(seconds: float) -> str:
    """Duration in the unit a person would use: "38.2 ms", "1.3 s", "5.2 h", "12 days"."""
    size = abs(seconds)
    if not size:
        return "0 s"
    for unit, below in (
        ("ns", 0.9995e-6),
        ("us", 0.9995e-3),
        ("ms", 0.9995),
        ("s", 120.0),
        ("min", 7200.0),
        ("h", 172_800.0),
    ):
        if size < below:
            return f"{_significant(seconds / float(_DURATION.scales[unit]))} {unit}"
    return f"{_significant(seconds / 86_400)} days"


def format_count(count: float) -> str:
    """A number of things, exact below ten thousand: "8192", "40M", "1.24B"."""
    if abs(count) < 10_000:
        return _significant(count, digits=4)
    for unit, scale in (("k", 10**3), ("M", 10**6), ("B", 10**9)):
        if abs(count) < 999.5 * scale:
            return f"{_significant(count / scale)}{unit}"
    return f"{_significant(count / 10**12)}T"


def format_usd(amount: float) -> str:
    """Money: cents below ten dollars, three digits above: "$4.20", "$12,400"."""
    size = abs(amount)
    sign = "-" if amount < 0 else ""
    if size < 9.995:
        return f"{sign}${size:.2f}"
    return f"{sign}${Decimal(_significant(size)):,}"


def format_usd_per_hour(price: float) -> str:
    """A price: "$2.49/h"."""
    return f"{'-' if price < 0 else ''}${abs(price):,.2f}/h"


def format_percent(share: float) -> str:
    """A share of one: 0.423 -> "42 %", 0.0042 -> "0.42 %"."""
    return f"{_significant(share * 100, digits=2)} %"


def _parse(text: str, kind: _Kind) -> Decimal:
    stripped = text.strip()
    match = _QUANTITY.fullmatch(stripped)
    if match is None:
        raise _refusal(stripped, kind)
    unit = match.group(2).strip()
    scale = kind.scales.get(unit)
    if scale is None and not _BIT_UNIT.fullmatch(unit):
        scale = {name.lower(): value for name, value in kind.scales.items()}.get(unit.lower())
    if scale is None:
        raise _refusal(stripped, kind)
    number = Decimal(match.group(1).replace(",", ""))
    if number.adjusted() > _LARGEST_EXPONENT:
        raise UsageError(
            f"{stripped!r} is too large for {kind.name}", hint=f"write {kind.name} such as {kind.examples}"
        )
    return number * scale


def _refusal(text: str, kind: _Kind) -> UsageError:
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2).strip() if match else ""
    other = next((known.name for known in _KINDS if unit and unit in known.scales and unit not in kind.scales), None)
    if match is None:
        found = "is not a number with a unit"
    elif not unit:
        found = "is a bare number"
        if kind.units:
            found += f" without its unit ({kind.units})"
    elif other:
        found = f"is {other}"
    elif _BIT_UNIT.fullmatch(unit):
        found = f"is in bits: {unit!r} is not {unit.replace('b', 'B')!r}"
    else:
        found = f"has the unknown unit {unit!r}"
    return UsageError(f"{kind.name} is due, but {text!r} {found}", hint=f"write {kind.name} such as {kind.examples}")


def _with_prefix(value: float) -> str:
    """Three significant digits and the decimal prefix to put before the unit: "3.35 T"."""
    for prefix, power in _PREFIXES.items():
        if abs(value) < 999.5 * 1000**power:
            return f"{_significant(value / 1000**power)} {prefix}"
    return f"{_significant(value / 1000**6)} E"


def _significant(value: float, *, digits: int = 3) -> str:
    """`value` rounded to `digits` significant digits, without an exponent or trailing zeros."""
    if value == 0:
        return "0"
    return f"{Decimal(f'{value:.{digits - 1}e}').normalize():f}"
