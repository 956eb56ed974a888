"""Text for a terminal: at most 120 columns, colour only in headings, bars and asides."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from rich.cells import cell_len

from advisor.report.blocks import Bars, Block, Code, Notes, Paragraph, Table
from advisor.report.formats._layout import Line, bar_lines, table_lines, wrap
from advisor.report.model import Report
from advisor.report.view import Section, title

_WIDEST = 120  # longer lines are hard to read
_NARROWEST = 80  # figures don't wrap: narrower tables would break
_STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m", "cyan": "\x1b[36m"}
_RESET = "\x1b[0m"


class Terminal:
    """`width` None: that of the terminal, 80 where there is none. The command line strips colour where it can't be."""

    name = "terminal"
    suffix = ".txt"

    def __init__(self, *, width: int | None = None, colour: bool = True) -> None:
        self._width = width
        self._colour = colour

    def render(self, sections: Sequence[Section], report: Report) -> str:
        width = self._width or min(max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST), _WIDEST)
        return "".join(f"{self._painted(line)}\n" for line in _page(sections, title(report), width))

    def _painted(self, line: Line) -> str:
        parts = ((line.text.rstrip(), line.style), (line.bar.rstrip(), "cyan"))
        return "".join(
            f"{_STYLES[style]}{text}{_RESET}" if text and style and self._colour else text for text, style in parts
        )


def _page(sections: Sequence[Section], name: str, width: int) -> Iterator[Line]:
    yield from _text(f"advisor: {name}", width, style="bold")
    for number, section in enumerate(sections, start=1):
        yield Line("")
        heading = f"{number}. {section.title} "
        yield Line(f"{heading}{'─' * (width - cell_len(heading))}", "bold")
        previous: Block | None = None
        for block in section.blocks:
            if previous and not (isinstance(block, Paragraph) and isinstance(previous, Paragraph)):
                yield Line("")
            previous = block
            yield from _lines(block, width)


def _lines(block: Block, width: int) -> Iterator[Line]:
    if isinstance(block, Paragraph):
        yield from _text(block.text, width, style="bold" if block.strong else "")
        return
    if block.title:
        yield from _text(block.title, width, style="bold")
    match block:
        case Table() | Bars():
            yield from table_lines(block, width) if isinstance(block, Table) else bar_lines(block, width)
            if block.caption:
                yield from _text(block.caption, width, first="  ", style="dim")
        case Code(text=text):
            yield from (Line(f"    {row}") for row in text.splitlines())  # to be copied: never broken
        case Notes(items=items):
            for item in items:
                yield from _text(item, width, first="  - ")


def _text(text: str, width: int, *, first: str = "", style: str = "") -> Iterator[Line]:
    """Wrapped text, later lines below the first."""
    for position, line in enumerate(wrap(text, width - len(first))):
        yield Line(f"{' ' * len(first) if position else first}{line}", style)


FORMAT = Terminal()
