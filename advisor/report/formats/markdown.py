"""CommonMark with pipe tables, for planning documents, wikis and pull requests; no HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from advisor.report.blocks import Bars, Block, Code, Notes, Paragraph, Table
from advisor.report.model import Report
from advisor.report.view import Section, title

# Everything that may start markup inside a line; an underscore inside a word does not.
_MARKUP = re.compile(r"[\\`*<\[\]|~&$#]|(?<![^\W_])_|_(?![^\W_])")
# What starts a list, a quotation or a rule at the beginning of a line: the last character is escaped.
_BLOCK_START = re.compile(r"^(?:[-+](?=\s|$)|\d{1,9}[.)](?=\s|$)|-(?=-)|>)")


class Markdown:
    name = "markdown"
    suffix = ".md"

    def render(self, sections: Sequence[Section], report: Report) -> str:
        parts = [f"# advisor: {_escaped(title(report))}"]
        for number, section in enumerate(sections, start=1):
            parts.append(f"## {number}. {_escaped(section.title)}")
            parts.extend("\n".join(lines) for block in section.blocks for lines in _groups(block))
        return "\n\n".join(part for part in parts if part) + "\n"


def _groups(block: Block) -> Iterator[list[str]]:
    """Groups of lines that belong together; a blank line goes between groups."""
    match block:
        case Paragraph(text=text, strong=strong):
            yield [f"**{_escaped(text)}**" if strong else _paragraph(text)]
        case Table(rows=rows) if rows:
            yield _heading(block.title)
            aligns = ["---:" if column.align == "right" else ":---" for column in block.columns]
            titles = [column.title for column in block.columns]
            yield [_cells(titles), _cells(aligns, raw=True), *(_cells(cell.text for cell in row) for row in rows)]
            yield [_paragraph(block.caption)] if block.caption else []
        case Bars():
            yield _heading(block.title)
            aligns = [":---", *["---:"] * len(block.columns)]
            lines = [_cells((bar.label, *bar.texts)) for bar in block.bars]
            yield [_cells(("", *block.columns)), _cells(aligns, raw=True), *lines]
            yield [_paragraph(block.caption)] if block.caption else []
        case Code(language=language, text=text, title=heading):
            yield _heading(heading)
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
            yield [f"{fence}{language}", text, fence]
        case Notes(items=items, title=heading):
            yield _heading(heading)
            yield [f"- {_paragraph(item)}" for item in items]


def _heading(text: str) -> list[str]:
    return [f"**{_escaped(text)}**"] if text else []


def _cells(texts: Iterable[str], *, raw: bool = False) -> str:
    return f"| {' | '.join(text if raw else _escaped(text) for text in texts)} |"


def _paragraph(text: str) -> str:
    return _BLOCK_START.sub(lambda match: f"{match.group()[:-1]}\\{match.group()[-1]}", _escaped(text))


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda match: f"\\{match.group()}", text)


FORMAT = Markdown()
