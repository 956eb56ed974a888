import io
import os
import sys
from pathlib import Path

import pytest
from fabricated_reports import single_device

from advisor.cli import output
from advisor.errors import UsageError
from advisor.report.model import loads


class Screen(io.TextIOWrapper):
    """A terminal that remembers."""

    def __init__(self, *, encoding: str = "utf-8", is_terminal: bool = True) -> None:
        self.bytes = io.BytesIO()
        self._is_terminal = is_terminal
        super().__init__(self.bytes, encoding=encoding)

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        (None, None, "terminal"),
        ("markdown", None, "markdown"),
        (None, Path("r.json"), "json"),
        (None, Path("r.md"), "markdown"),
        ("json", Path("r.md"), "json"),
    ],
)
def test_format(name: str | None, path: Path | None, expected: str) -> None:
    assert output.choose_format(name, path).name == expected


def test_unknown_formats() -> None:
    with pytest.raises(UsageError) as raised:
        output.choose_format("markdwn", None)
    assert "did you mean 'markdown'?" in raised.value.hint
    with pytest.raises(UsageError, match=r"suffix '\.pdf'"):
        output.choose_format(None, Path("r.pdf"))


def test_a_place_that_can_t_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        output.check("json", tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        output.check("json", tmp_path / "none" / "r.json")


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")

    def interrupted() -> None:
        with output._beside(path) as file:
            file.write("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    output.write(path, "new")
    assert path.read_text() == "new"


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    output.write(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_a_device_is_written_to() -> None:
    output.write(Path(os.devnull), "gone")
    assert not Path(os.devnull).is_file()


def test_reports_in_files_have_no_colour(tmp_path: Path) -> None:
    output.emit_report(single_device(), format_name="terminal", output=tmp_path / "r.txt")
    assert "\x1b" not in (tmp_path / "r.txt").read_text()
    output.emit_report(single_device(), format_name=None, output=tmp_path / "r.json")
    assert loads((tmp_path / "r.json").read_text()) == single_device()


@pytest.mark.parametrize(
    ("is_terminal", "environment", "coloured"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_colour_only_where_it_is_seen(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, environment: dict[str, str], coloured: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen(is_terminal=is_terminal)
    output.emit("\x1b[1mbold\x1b[0m\n", stream=screen)
    assert (b"\x1b" in screen.bytes.getvalue()) is coloured


def test_a_screen_that_lacks_a_character() -> None:
    screen = Screen(encoding="latin-1")
    output.emit("█ 1 GiB\n", stream=screen)
    assert screen.bytes.getvalue() == b"? 1 GiB\n"


def test_a_reader_that_went_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        output.emit("x" * 100_000, stream=stream)
        stream.write("more")  # goes nowhere, without an error


def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    output.emit("page\n")
    assert capsys.readouterr().out == "page\n"
    assert sys.stdout is not None
