import pytest

from advisor.cost.estimate import Provenance
from advisor.report.blocks import Bar, Bars, Cell, Code, Column, Notes, Paragraph, Table, clean, inert


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("two\n  lines\t", "two lines"),
        ("\x1b[31mred\x1b[0m", "\N{REPLACEMENT CHARACTER}[31mred\N{REPLACEMENT CHARACTER}[0m"),
        ("safe\u202egnp.exe", "safe\N{REPLACEMENT CHARACTER}gnp.exe"),
        ("名前 é", "名前 é"),
        ("\x9b2J", "\N{REPLACEMENT CHARACTER}2J"),
    ],
)
def test_clean(text: str, expected: str) -> None:
    assert clean(text) == expected


def test_code_keeps_its_lines_and_indents() -> None:
    assert Code("python", "if x:\n\ty()  # why\x07\n").text == "if x:\n    y()  # why\N{REPLACEMENT CHARACTER}"


def test_every_block_is_inert() -> None:
    hostile = "\x1b]0;title\x07"
    blocks = (
        Paragraph(hostile),
        Cell(hostile),
        Column(hostile),
        Code("python", hostile, title=hostile),
        Notes((hostile,), title=hostile),
        Bar(hostile, 0.5, (hostile,)),
        Bars(title=hostile, columns=(hostile,), bars=(), provenance=Provenance.ASSUMED, caption=hostile),
        Table(columns=(), rows=(), title=hostile, caption=hostile),
    )
    assert not [block for block in blocks if "\\x1b" in repr(block)]


def test_inert_is_the_identity_for_printable_text() -> None:
    assert inert("a  b") == "a  b"
