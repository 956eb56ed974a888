"""The stored report itself: what `advisor report`, `gate` and `compare` read."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.report.model import Report, dump
from advisor.report.view import Section


class Json:
    name = "json"
    suffix = ".json"

    def render(self, sections: Sequence[Section], report: Report) -> str:
        return dump(report)


FORMAT = Json()
