"""What a page is made of, before any format: `Section` with `Paragraph`, `Table`, `Bars`, `Code`, `Notes`.

Text in a block is plain and safe to print: control characters (terminal escapes) are replaced when it is made.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, fields
from typing import Literal

from advisor.cost.estimate import Provenance

# Bidirectional marks and overrides: with them a name can make the line around it read differently (CVE-2021-42574).
_BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def inert(text: str) -> str:
    """`text` with everything that could steer a terminal or reorder a line replaced."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if _steers(character) else character for character in text)


def _steers(character: str) -> bool:
    return character in _BIDIRECTIONAL or unicodedata.category(character) in ("Cc", "Cs")


def clean(text: str) -> str:
    """`inert` text on one line, whitespace folded."""
    return inert(" ".join(text.split()))


class _Inert:
    """Text fields of a block are cleaned as it is made, whoever wrote them."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]  # every child is a dataclass
            value = getattr(self, field.name)
            if type(value) is str:  # no enumeration
                object.__setattr__(self, field.name, clean(value))
            elif isinstance(value, tuple) and all(isinstance(item, str) for item in value):
                object.__setattr__(self, field.name, tuple(map(clean, value)))


@dataclass(frozen=True, slots=True)
class Paragraph(_Inert):
    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Cell(_Inert):
    """Text of one cell; `provenance` where it is a number of the analysis."""

    text: str
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class Column(_Inert):
    title: str
    align: Literal["left", "right"] = "left"
    note: bool = False  # long text: where the page is narrow it goes under its row


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(_Inert):
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    caption: str = ""  # says which figures are measured, predicted, assumed, where the rows don't


@dataclass(frozen=True, slots=True)
class Bar(_Inert):
    label: str
    share: float  # of the longest possible bar, 0..1
    texts: tuple[str, ...]  # one for each of `Bars.columns`


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars(_Inert):
    title: str
    columns: tuple[str, ...]  # titles of the figures beside the bars
    bars: tuple[Bar, ...]
    provenance: Provenance
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    language: str
    text: str
    title: str = ""

    def __post_init__(self) -> None:
        lines = self.text.expandtabs(4).splitlines()
        object.__setattr__(self, "text", "\n".join(inert(line.rstrip()) for line in lines))
        object.__setattr__(self, "title", clean(self.title))


@dataclass(frozen=True, slots=True)
class Notes(_Inert):
    items: tuple[str, ...]
    title: str = ""


Block = Paragraph | Table | Bars | Code | Notes


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]
