"""Tables and bars as lines of a terminal of a given width: figures never wrap, text does, notes go under their row.

Of rich, only the widths of characters: its console would take a third of the time of `advisor report`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len, chop_cells

from advisor.report.blocks import Bars, Cell, Column, Table

_GAP = 2
_INDENT = 2
_NARROWEST = 6
_NARROWEST_NOTE = 36  # a note column narrower than this goes under its row
_LONGEST_LABEL = 50
_LONGEST_BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


_WORDS = re.compile(" (?!%)")  # "80 %" stays together


class Line(NamedTuple):
    text: str
    style: str = ""  # "bold", "dim" or none
    bar: str = ""  # drawn behind the text, in a colour of its own


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells; only a word that is longer by itself is broken."""
    if cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    line = ""
    for word in _WORDS.split(text):
        longer = f"{line} {word}" if line else word
        if cell_len(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        *whole, line = chop_cells(word, width)
        lines += whole
    return [*lines, line]


def table_lines(table: Table, page_width: int) -> Iterator[Line]:
    if not table.rows:
        return
    width = page_width - _INDENT
    beside = tuple(i for i, column in enumerate(table.columns) if not column.note)
    notes = tuple(i for i in range(len(table.columns)) if i not in beside)
    widths = _natural_widths(table)
    room = width - sum(widths[i] + _GAP for i in beside)
    if notes and room >= _NARROWEST_NOTE:
        widths[notes[0]] = min(widths[notes[0]], room)
        beside, notes = tuple(sorted((*beside, notes[0]))), notes[1:]
    columns = [table.columns[i] for i in beside]
    shown = _fit(columns, [widths[i] for i in beside], _least_widths(table, beside), width)
    if any(column.title for column in columns):
        yield from _row([column.title for column in columns], shown, columns, style="bold")
        yield Line(" " * _INDENT + "─" * (sum(shown) + _GAP * (len(shown) - 1)), "dim")
    for row in table.rows:
        yield from _row([row[i].text for i in beside], shown, columns)
        for i in notes:
            yield from _indented(row[i], page_width)


def _natural_widths(table: Table) -> list[int]:
    """What each column takes unwrapped; the title of a column of figures may wrap."""
    widths = []
    for i, column in enumerate(table.columns):
        title = _longest_word(column.title) if column.align == "right" else cell_len(column.title)
        widths.append(max(title, *(cell_len(row[i].text) for row in table.rows)))
    return widths


def _least_widths(table: Table, beside: Sequence[int]) -> list[int]:
    """What each column needs: figures whole, text its longest word."""
    natural = _natural_widths(table)
    return [
        natural[i]
        if table.columns[i].align == "right"
        else max(_longest_word(table.columns[i].title), *(_longest_word(row[i].text) for row in table.rows))
        for i in beside
    ]


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _fit(columns: Sequence[Column], natural: list[int], least: list[int], width: int) -> list[int]:
    """Take from the widest text column until the row fits; row titles and whole words give last."""
    widths = list(natural)
    texts = [i for i, column in enumerate(columns) if column.align == "left"]
    through_words = [_NARROWEST] * len(widths)
    for floor, givers in ((least, texts[1:]), (least, texts), (through_words, texts[1:]), (through_words, texts)):
        while sum(widths) + _GAP * (len(widths) - 1) > width:
            can_give = [i for i in givers if widths[i] > floor[i]]
            if not can_give:
                break
            widths[max(can_give, key=lambda i: widths[i])] -= 1
    return widths


def _row(texts: Sequence[str], widths: Sequence[int], columns: Sequence[Column], *, style: str = "") -> Iterator[Line]:
    wrapped = [wrap(text, width) for text, width in zip(texts, widths, strict=True)]
    for line in range(max(len(lines) for lines in wrapped)):
        parts = []
        for lines, width, column in zip(wrapped, widths, columns, strict=True):
            part = lines[line] if line < len(lines) else ""
            blanks = " " * (width - cell_len(part))
            parts.append(blanks + part if column.align == "right" else part + blanks)
        yield Line((" " * _INDENT + (" " * _GAP).join(parts)).rstrip(), style)


def _indented(cell: Cell, page_width: int) -> Iterator[Line]:
    indent = _INDENT * 3
    for line in wrap(cell.text, page_width - indent):
        yield Line(" " * indent + line, "dim")


def bar_lines(bars: Bars, page_width: int) -> Iterator[Line]:
    width = page_width - _INDENT
    figures = [
        max([cell_len(title), *(cell_len(bar.texts[i]) for bar in bars.bars)]) for i, title in enumerate(bars.columns)
    ]
    label = min(max((cell_len(bar.label) for bar in bars.bars), default=0), _LONGEST_LABEL)
    room = min(width - label - sum(w + _GAP for w in figures) - _GAP, _LONGEST_BAR)
    columns = (Column(""), *(Column(title, "right") for title in bars.columns))
    widths = [label, *figures]
    yield from _row([column.title for column in columns], widths, columns, style="bold")
    for bar in bars.bars:
        first, *rest = _row([bar.label, *bar.texts], widths, columns)
        blanks = " " * (_INDENT + sum(widths) + _GAP * len(widths) - cell_len(first.text))
        yield from (Line(first.text, bar=blanks + _drawn(bar.share, room)), *rest)


def _drawn(share: float, room: int) -> str:
    eighths = round(min(1.0, max(0.0, share)) * max(0, room) * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
