import io
import time

import pytest

from advisor.cli import progress


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress(quiet=True) as tell:
        tell("tracing", None)
    assert capsys.readouterr() == ("", "")


def test_plain_lines_for_what_takes_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_WORTH_SAYING_S", 0.2)
    with progress.progress(quiet=False) as tell:
        tell("loading", None)  # at once done
        tell("tracing", 0.1)
        time.sleep(0.35)
        tell("tracing", 0.9)  # said before
        tell("searching", None)
    assert capsys.readouterr() == ("", "advisor: tracing\n")


def test_an_interrupt_ends_the_lines_too() -> None:
    def interrupted() -> None:
        with progress.progress(quiet=False) as tell:
            tell("tracing", None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_it_moves_and_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress.progress(quiet=False) as tell:
        tell("tracing [b]model[/b]", 0.5)
        time.sleep(0.3)
    assert "tracing [b]model[/b]" in screen.getvalue()
