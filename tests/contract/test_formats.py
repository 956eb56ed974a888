"""Every report format that is discovered, over every kind of report."""

from pathlib import Path

import pytest
from fabricated_reports import REPORTS

from advisor.discovery import discover
from advisor.report.formats.base import Format
from advisor.report.view import headline, sections

FORMATS = discover("advisor.report.formats", "FORMAT", Format)
EVERY = [(name, kind) for name in FORMATS for kind in REPORTS]


def rendered(name: str, kind: str) -> str:
    report = REPORTS[kind]()
    return FORMATS[name].render(sections(report), report)


def test_the_first_formats_are_there() -> None:
    assert {"terminal", "markdown", "json"} <= set(FORMATS)


def test_names_are_those_of_the_files_and_suffixes_differ() -> None:
    folder = Path(__file__).parents[2] / "advisor" / "report" / "formats"
    assert set(FORMATS) == {file.stem for file in folder.glob("[!_]*.py")} - {"base"}
    suffixes = [known.suffix for known in FORMATS.values()]
    assert len(set(suffixes)) == len(suffixes)
    assert all(suffix.startswith(".") for suffix in suffixes)


@pytest.mark.parametrize("name", FORMATS)
def test_has_a_test_of_its_own(name: str) -> None:
    assert (Path(__file__).parents[1] / "unit" / "report" / "formats" / f"test_{name}.py").exists()


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_same_report_same_bytes(name: str, kind: str) -> None:
    assert rendered(name, kind) == rendered(name, kind)


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_ends_in_one_line_break(name: str, kind: str) -> None:
    text = rendered(name, kind)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


@pytest.mark.parametrize(("name", "kind"), EVERY)
def test_shows_the_headline(name: str, kind: str) -> None:
    """The verdict, the model, the device and the memory: formatted on a page, as they are in the data."""
    report = REPORTS[kind]()
    text = rendered(name, kind)
    assert report.description.model in text
    assert report.device.title in text
    if name == "json":
        assert str(report.subject.estimate.memory.required_bytes) in text
        return
    assert headline(report) in text
    memory = report.subject.estimate.memory
    assert f"{memory.required_bytes / 2**30:.1f}" in text
    if report.subject.estimate.time is not None:
        assert "80 % band" in text
