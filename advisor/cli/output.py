"""Where a page goes: standard output, or a file that is there whole or not at all."""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from advisor.errors import UsageError

if TYPE_CHECKING:
    from advisor.report.formats.base import Format
    from advisor.report.model import Report

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def check(format_name: str | None, output: Path | None) -> None:
    """Refuse a format or a file that can't be written before any work is done."""
    choose_format(format_name, output)
    if output is not None and output.is_dir():
        raise UsageError(f"--output {output} is a folder", hint=f"name a file in it: {output / 'report.json'}")
    if output is not None and not output.parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {output.parent}")


def choose_format(name: str | None, output: Path | None) -> Format:
    """The format named, else the one of the file's suffix, else the terminal's."""
    from advisor.discovery import discover
    from advisor.report.formats.base import Format

    formats = discover("advisor.report.formats", "FORMAT", Format)  # type: ignore[type-abstract]
    if name is not None:
        if name not in formats:
            close = difflib.get_close_matches(name, formats, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"unknown format {name!r}", hint=f"{meant}known: {', '.join(formats)}")
        return formats[name]
    if output is None:
        return formats["terminal"]
    by_suffix = {known.suffix: known for known in formats.values()}
    if output.suffix not in by_suffix:
        raise UsageError(
            f"no format has the suffix {output.suffix!r} of {output}",
            hint=f"name one with --format, or end the file in {', '.join(by_suffix)}",
        )
    return by_suffix[output.suffix]


def emit_report(report: Report, *, format_name: str | None, output: Path | None) -> None:
    from advisor.report.view import sections

    text = choose_format(format_name, output).render(sections(report), report)
    if output is None:
        emit(text)
    else:
        write(output, _ANSI.sub("", text))


def emit(text: str, *, stream: TextIO | None = None) -> None:
    """To standard output; colour only where it can be seen. A reader that went away is no error."""
    stream = stream or sys.stdout
    if not _shows_colour(stream):
        text = _ANSI.sub("", text)
    encoding = stream.encoding or "utf-8"
    text = text.encode(encoding, "replace").decode(encoding)  # a bar may have no place in a Latin-1 terminal
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Let nothing more be written: Python's own flush at exit would fail again on a closed pipe."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _shows_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(path: Path, text: str) -> None:
    """Write a file at once: on any error or interrupt the old one, or none, is left."""
    target = path.resolve()  # through a link to the file it names
    if target.exists() and not target.is_file():  # a device or a pipe can't be replaced
        target.write_text(text, encoding="utf-8")
        return
    try:
        with _beside(target) as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[TextIO]:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            yield file
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
