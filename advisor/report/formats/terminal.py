"""Text for a terminal, through rich: at most 120 columns, colour only in headings, bars and asides."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from advisor.report.blocks import Bars, Block, Code, Notes, Paragraph, Table
from advisor.report.formats._layout import bar_lines, table_lines
from advisor.report.model import Report
from advisor.report.view import Section, title

_WIDEST = 120  # longer lines are hard to read
_NARROWEST = 80  # figures don't wrap: narrower tables would break


class Terminal:
    """`width` None: that of the terminal, 80 where there is none. The command line strips colour where it can't be."""

    name = "terminal"
    suffix = ".txt"

    def __init__(self, *, width: int | None = None, colour: bool = True) -> None:
        self._width = width
        self._colour = colour

    def render(self, sections: Sequence[Section], report: Report) -> str:
        width = self._width or min(max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST), _WIDEST)
        console = Console(
            file=io.StringIO(),
            width=width,
            force_terminal=self._colour,
            color_system="standard" if self._colour else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},  # nothing of this machine may change the page
        )
        with console.capture() as capture:
            console.print(Text(f"advisor: {title(report)}", style="bold"))
            for number, section in enumerate(sections, start=1):
                console.print()
                console.print(Rule(Text(f"{number}. {section.title}", style="bold"), align="left", style="dim"))
                previous: Block | None = None
                for position, block in enumerate(section.blocks):
                    if position and not (isinstance(block, Paragraph) and isinstance(previous, Paragraph)):
                        console.print()
                    previous = block
                    _print(block, console)
        return "".join(f"{line.rstrip()}\n" for line in capture.get().split("\n")).rstrip("\n") + "\n"


def _print(block: Block, console: Console) -> None:
    if isinstance(block, Paragraph):
        _print_text(block.text, console, style="bold" if block.strong else "")
        return
    if block.title:
        _print_text(block.title, console, style="bold")
    match block:
        case Table() | Bars():
            for line in table_lines(block, console) if isinstance(block, Table) else bar_lines(block, console):
                console.print(line, soft_wrap=True)
            if block.caption:
                _print_text(block.caption, console, first="  ", style="dim")
        case Code(text=text):
            for row in text.splitlines():
                console.print(Text(f"    {row}"), soft_wrap=True)  # to be copied: never broken
        case Notes(items=items):
            for item in items:
                _print_text(item, console, first="  - ")


def _print_text(text: str, console: Console, *, first: str = "", style: str = "") -> None:
    """Wrapped text, later lines below the first; no blanks at the end of a line, which rich would leave."""
    for position, line in enumerate(Text(text, style=style).wrap(console, console.width - len(first))):
        line.rstrip()
        console.print(Text(" " * len(first) if position else first) + line)


FORMAT = Terminal()
