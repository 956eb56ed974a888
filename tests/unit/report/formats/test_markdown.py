import re
from dataclasses import replace

import pytest
from fabricated_reports import DESCRIPTION, REPORTS, single_device
from markdown_it import MarkdownIt

from advisor.report.blocks import Cell, Code, Column, Notes, Paragraph, Section, Table
from advisor.report.formats.markdown import FORMAT
from advisor.report.view import sections

HOSTILE = [
    "<script>alert(1)</script>",
    "a | b",
    "*bold* _under_ **x** ~~s~~",
    "`code`",
    "[link](http://x) ![img](y)",
    "# heading",
    "- item",
    "+ item",
    "12. item",
    "1) item",
    "> quote",
    "---",
    "&lt; &amp;",
    "back\\slash \\| pipe",
    "$5 and $6",
    "snake_case__name _x",
    "<http://auto.link>",
]


def page(*blocks: object) -> str:
    return FORMAT.render((Section("Title", blocks),), single_device())


def html(markdown: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(markdown)


def text_of(markup: str) -> str:
    stripped = re.sub(r"<[^>]*>", "", markup)
    for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        stripped = stripped.replace(entity, character)
    return stripped


@pytest.mark.parametrize("text", HOSTILE)
def test_text_comes_out_as_it_went_in(text: str) -> None:
    for strong in (False, True):
        assert text in text_of(html(page(Paragraph(text, strong=strong))))
    assert f"<li>{text}" in html(page(Notes((text,)))).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    table = html(page(Table(columns=(Column(text),), rows=((Cell(text),),))))
    assert text_of(table).count(text) == 2
    assert table.count("<td") == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_no_markup_is_made_of_text(text: str) -> None:
    found = set(re.findall(r"<(\w+)", html(page(Paragraph(text)))))
    assert found == {"h1", "h2", "p"}


@pytest.mark.parametrize("kind", REPORTS)
def test_every_table_of_a_report_is_one(kind: str) -> None:
    report = REPORTS[kind]()
    markdown = FORMAT.render(sections(report), report)
    rules = len(re.findall(r"^\| :?---", markdown, flags=re.MULTILINE))
    assert html(markdown).count("<table>") == rules
    assert html(markdown).count("<h2>") == len(sections(report))


def test_code_fences_are_longer_than_those_inside() -> None:
    code = "print('''\n```\n''')"
    assert code in html(page(Code("python", code))).replace("&#x27;", "'")


def test_identifiers_stay_readable() -> None:
    assert "aten.\\_foreach_sqrt" in page(Paragraph("aten._foreach_sqrt"))
    assert "lm_head" in page(Paragraph("lm_head"))


def test_a_hostile_model_name() -> None:
    report = single_device().model_copy(update={"description": replace(DESCRIPTION, model="<img src=x> | `rm`")})
    assert "<img" not in html(FORMAT.render(sections(report), report))
