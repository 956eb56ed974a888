"""Tables and bars as lines of a terminal of a given width: figures never wrap, text does, notes go under their row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from advisor.report.blocks import Bar, Bars, Cell, Column, Table

_GAP = 2
_INDENT = 2
_NARROWEST = 6
_NARROWEST_NOTE = 36  # a note column narrower than this goes under its row
_LONGEST_LABEL = 40
_LONGEST_BAR = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"


def table_lines(table: Table, console: Console) -> Iterator[Text]:
    if not table.rows:
        return
    width = console.width - _INDENT
    beside = tuple(i for i, column in enumerate(table.columns) if not column.note)
    notes = tuple(i for i in range(len(table.columns)) if i not in beside)
    widths = _natural_widths(table)
    room = width - sum(widths[i] + _GAP for i in beside)
    if notes and room >= _NARROWEST_NOTE:
        widths[notes[0]] = min(widths[notes[0]], room)
        beside, notes = tuple(sorted((*beside, notes[0]))), notes[1:]
    shown = _fit([table.columns[i] for i in beside], [widths[i] for i in beside], _least_widths(table, beside), width)
    header = [Text(table.columns[i].title, style="bold") for i in beside]
    aligns = [table.columns[i].align for i in beside]
    if any(text.plain for text in header):
        yield from _row(header, shown, aligns, console)
        yield Text(" " * _INDENT + "─" * (sum(shown) + _GAP * (len(shown) - 1)), style="dim")
    for row in table.rows:
        yield from _row([Text(row[i].text) for i in beside], shown, aligns, console)
        for i in notes:
            yield from _indented(row[i], console)


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


def _row(cells: Sequence[Text], widths: Sequence[int], aligns: Sequence[str], console: Console) -> Iterator[Text]:
    wrapped = [list(cell.wrap(console, width)) or [Text()] for cell, width in zip(cells, widths, strict=True)]
    for line in range(max(len(lines) for lines in wrapped)):
        parts = []
        for lines, width, align in zip(wrapped, widths, aligns, strict=True):
            part = lines[line].copy() if line < len(lines) else Text()
            part.rstrip()
            part.align("right" if align == "right" else "left", width)
            parts.append(part)
        result = Text(" " * _INDENT) + Text(" " * _GAP).join(parts)
        result.rstrip()
        yield result


def _indented(cell: Cell, console: Console) -> Iterator[Text]:
    indent = _INDENT * 3
    for line in Text(cell.text, style="dim").wrap(console, console.width - indent):
        line.rstrip()
        yield Text(" " * indent) + line


def bar_lines(bars: Bars, console: Console) -> Iterator[Text]:
    width = console.width - _INDENT
    figures = [
        max([cell_len(title), *(cell_len(bar.texts[i]) for bar in bars.bars)]) for i, title in enumerate(bars.columns)
    ]
    label = min(max((cell_len(bar.label) for bar in bars.bars), default=0), _LONGEST_LABEL)
    room = min(width - label - sum(w + _GAP for w in figures) - _GAP, _LONGEST_BAR)
    titles = [Text(title, style="bold") for title in bars.columns]
    aligns = ["left", *["right"] * len(figures)]
    yield from _row([Text(), *titles], [label, *figures], aligns, console)
    for bar in bars.bars:
        yield from _bar(bar, [label, *figures], aligns, room, console)


def _bar(bar: Bar, widths: list[int], aligns: list[str], room: int, console: Console) -> Iterator[Text]:
    first, *rest = _row([Text(bar.label), *map(Text, bar.texts)], widths, aligns, console)
    first.align("left", _INDENT + sum(widths) + _GAP * len(widths))
    first.append(_drawn(bar.share, room), style="cyan")
    first.rstrip()
    yield first
    yield from rest


def _drawn(share: float, room: int) -> str:
    eighths = round(min(1.0, max(0.0, share)) * max(0, room) * 8)
    return "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
