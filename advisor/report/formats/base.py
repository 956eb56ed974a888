"""The contract of a report format: sections in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from advisor.report.model import Report
from advisor.report.view import Section


class Format(Protocol):
    """One file in this folder that defines `FORMAT`. Its own settings go in its constructor, never in `render`."""

    name: str
    suffix: str

    def render(self, sections: Sequence[Section], report: Report) -> str: ...
