"""What `assess`, `estimate` and `measure` share: settings in, a session, one function of `analysis`, a page out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.cli import output, settings
from advisor.cli.progress import Tell, progress

if TYPE_CHECKING:
    from advisor.analysis import Request
    from advisor.report.model import Report
    from advisor.session.base import Session

    Question = Callable[[Session, Request, Tell], Report]


def ask(question: Question, parameters: Mapping[str, object], *, target: str) -> Report:
    """The report that answers `question` about `target`, under the settings of the command line and its files."""
    from advisor.analysis import check_hardware
    from advisor.session.child import ChildSession

    flags = settings.flag_layer(parameters)
    config = parameters.get("config")
    file = settings.file_layer(Path.cwd(), config=config if isinstance(config, Path) else None)
    before_loading = settings.merge(flags, file)
    check_hardware(settings.request(before_loading))  # what is misspelt need not wait for the user's file
    spec = settings.target_spec(before_loading, target=target)
    with progress(quiet=bool(parameters.get("quiet"))) as tell:
        tell(f"loading {target}", None)
        with ChildSession(spec) as session:
            own = settings.advisor_layer(session.description.settings, target=target)
            return question(session, settings.request(settings.merge(flags, file, own)), tell)


def answer(question: Question, parameters: Mapping[str, object], *, target: str) -> Report:
    """Ask, and put the page where the flags say."""
    format_name, path = _destination(parameters)
    output.check(format_name, path)
    report = ask(question, parameters, target=target)
    output.emit_report(report, format_name=format_name, output=path)
    return report


def _destination(parameters: Mapping[str, object]) -> tuple[str | None, Path | None]:
    name, path = parameters.get("format"), parameters.get("output")
    return name if isinstance(name, str) else None, path if isinstance(path, Path) and str(path) != "-" else None
