from dataclasses import replace

import pytest
from fabricated_reports import DESCRIPTION, DEVICE, REPORTS, single_device
from rich.cells import cell_len

from advisor.cost.estimate import Provenance
from advisor.report.blocks import Bar, Bars, Cell, Code, Column, Notes, Paragraph, Section, Table
from advisor.report.formats.terminal import FORMAT, Terminal
from advisor.report.view import sections


def page(*blocks: object, width: int = 80) -> list[str]:
    """The lines below the section's heading."""
    section = Section("Title", blocks)
    lines = Terminal(width=width, colour=False).render((section,), single_device()).splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("1. Title")) + 1 :]


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("kind", REPORTS)
def test_no_line_is_wider_than_the_terminal_but_code(kind: str, width: int) -> None:
    report = REPORTS[kind]()
    without_code = tuple(
        Section(section.title, tuple(block for block in section.blocks if not isinstance(block, Code)))
        for section in sections(report)
    )
    for line in Terminal(width=width, colour=False).render(without_code, report).splitlines():
        assert cell_len(line) <= width


def test_long_names_of_wide_characters_stay_inside() -> None:
    report = single_device().model_copy(
        update={
            "description": replace(DESCRIPTION, model="模型" * 60),
            "device": replace(DEVICE, title="x" * 300),
        }
    )
    for line in Terminal(width=80, colour=False).render(sections(report), report).splitlines():
        assert line.startswith("    advisor measure") or cell_len(line) <= 80


def test_colour_is_an_addition() -> None:
    report = single_device()
    plain = Terminal(width=80, colour=False).render(sections(report), report)
    coloured = Terminal(width=80, colour=True).render(sections(report), report)
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured


def test_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    report = single_device()
    assert max(len(line) for line in FORMAT.render(sections(report), report).splitlines() if "──" in line) < 160


def test_figures_never_wrap_and_text_does() -> None:
    columns = (Column("Name"), Column("Text"), Column("Memory", "right"))
    rows = ((Cell("row"), Cell("word " * 30), Cell("12.3 GiB")),)
    lines = page(Table(columns=columns, rows=rows), width=60)
    assert lines[0].endswith("Memory")
    assert lines[2].endswith("12.3 GiB")
    assert len(lines) > 3


def test_notes_stand_beside_where_there_is_room_and_below_where_not() -> None:
    columns = (Column("Option"), Column("Why", note=True))
    table = Table(columns=columns, rows=((Cell("a" * 50), Cell("because")),))
    assert page(table, width=80)[-1] == "      because"
    assert page(table, width=120)[-1] == f"  {'a' * 50}  because"


def test_bars() -> None:
    bars = Bars(
        title="Memory",
        columns=("size",),
        bars=(Bar("half", 0.5, ("1 GiB",)), Bar("none", 0.0, ("0 B",)), Bar("all", 1.0, ("2 GiB",))),
        provenance=Provenance.PREDICTED,
    )
    assert page(bars, width=60) == [
        "Memory",
        "         size",
        "  half  1 GiB  ████████████████████",
        "  none    0 B",
        "  all   2 GiB  ████████████████████████████████████████",
    ]


def test_code_is_never_broken() -> None:
    line = "python " + "--flag " * 40
    assert page(Code("shell", line, title="Run")) == ["Run", f"    {line.rstrip()}"]


def test_markup_of_rich_is_text() -> None:
    assert page(Paragraph("[bold]not bold[/bold] :smile:")) == ["[bold]not bold[/bold] :smile:"]


def test_notes_hang() -> None:
    assert page(Notes(("word " * 20,)), width=60)[1].startswith("    word")


def test_an_empty_table_takes_no_room() -> None:
    assert page(Table(columns=(Column("A"),), rows=())) == []


def test_a_percentage_is_never_torn() -> None:
    assert page(Paragraph("word " * 15 + "80 % of it"), width=80)[0].endswith("word 80 %")
    assert page(Paragraph("word " * 15 + "80 % of it"), width=79)[0].endswith("word 80 %")
    assert page(Paragraph("word " * 15 + "80 % of it"), width=78)[0].endswith("word")
