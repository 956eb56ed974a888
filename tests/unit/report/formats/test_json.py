from fabricated_reports import single_device

from advisor.report.formats.json import FORMAT
from advisor.report.model import loads


def test_is_the_stored_report() -> None:
    assert loads(FORMAT.render((), single_device())) == single_device()
