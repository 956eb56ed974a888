"""Frozen reports x formats, and the command line's help: a diff a person can read. `--update-golden` writes anew."""

import pytest
from conftest import GOLDEN
from fabricated_reports import REPORTS

from advisor.cli import _run
from advisor.discovery import discover
from advisor.report.formats.base import Format
from advisor.report.formats.terminal import Terminal
from advisor.report.model import dump, load
from advisor.report.view import sections

COMMANDS = (
    "assess",
    "estimate",
    "measure",
    "gate",
    "report",
    "init",
    "profiles",
    "profiles list",
    "profiles show",
    "profiles check",
)
PAGES = ("single_device", "data_parallel", "infeasible", "undetermined", "measured", "estimate")


@pytest.mark.parametrize("kind", PAGES)
def test_stored_report(golden, kind: str) -> None:
    golden(f"{kind}.json", dump(REPORTS[kind]()))


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("width", [80, 120])
def test_terminal(golden, kind: str, width: int) -> None:
    report = load(GOLDEN / f"{kind}.json")
    golden(f"{kind}.{width}.txt", Terminal(width=width, colour=False).render(sections(report), report))


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize(
    "name", sorted(set(discover("advisor.report.formats", "FORMAT", Format)) - {"terminal", "json"})
)
def test_other_formats(golden, kind: str, name: str) -> None:
    report = load(GOLDEN / f"{kind}.json")
    known = discover("advisor.report.formats", "FORMAT", Format)[name]
    golden(f"{kind}{known.suffix}", known.render(sections(report), report))


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(golden, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert _run([*command.split(), "--help"]) == 0
    golden(f"help/{command.replace(' ', '-') or 'advisor'}.txt", capsys.readouterr().out)
