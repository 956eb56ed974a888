"""`advisor report`: a stored report as a page. No torch, no user code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from advisor.cli import flags

Stored = Annotated[
    Path, typer.Argument(metavar="REPORT", show_default=False, help="a stored report; - is standard input")
]


def report(stored: Stored, format: flags.FormatName = None, output: flags.Output = None) -> int:
    """Render a stored report as text, Markdown or JSON."""
    from advisor.cli.output import emit_report
    from advisor.cli.stored import read

    path = None if output is None or str(output) == "-" else output
    emit_report(read(stored), format_name=format, output=path)
    return 0
