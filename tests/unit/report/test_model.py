import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated_reports import BASELINE, REPORTS, SINGLE, infeasible, measure, single_device
from pydantic import ValidationError

from advisor.errors import ReportError
from advisor.report import model
from advisor.report.model import Report, dump, load, loads, schema


@pytest.mark.parametrize("name", REPORTS)
def test_round_trip(name: str) -> None:
    report = REPORTS[name]()
    assert loads(dump(report)) == report
    assert dump(loads(dump(report))) == dump(report)


def test_same_report_same_bytes() -> None:
    assert dump(single_device()) == dump(single_device())


def test_measurement_and_estimate_stay_apart() -> None:
    stored = json.loads(dump(measure()))["baseline"]
    assert stored["estimate"]["time"]["step_s"] == 4.1
    assert stored["measurement"]["step_time_s"] == 4.4


def test_recommended_follows_the_verdict() -> None:
    assert single_device().recommended == SINGLE
    assert infeasible().recommended is None
    assert infeasible().subject == infeasible().nearest_single
    assert measure().recommended == measure().baseline


def test_infinity_is_refused_when_a_report_is_made() -> None:
    endless = replace(BASELINE, finish_s=math.inf)
    with pytest.raises(ValidationError):
        Report(**{**dict(single_device()), "baseline": endless})


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(dump(single_device())), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "recursion limit"),
        ('{"schema_version": NaN}', "not JSON"),
        ("[]", "not a report"),
        ("{}", "not a report"),
        ('{"schema_version": "2"}', "schema version '2'"),
        ('{"schema_version": "1"}', "description: Field required"),
        (changed(surprise=1), "surprise: Extra inputs"),
        (changed(num_parameters="many"), "num_parameters: Input should be a valid integer"),
        (changed(max_sequence_length=10**30), "more than 63 bits"),
        (changed(question="guess"), "question"),
    ],
)
def test_what_is_no_report(text: str, message: str) -> None:
    with pytest.raises(ReportError, match=message):
        loads(text)


def test_unknown_key_of_a_nested_part() -> None:
    content = json.loads(dump(single_device()))
    content["verdict"]["mood"] = "sure"
    with pytest.raises(ReportError, match=r"verdict\.mood"):
        loads(json.dumps(content))


def test_not_utf8() -> None:
    with pytest.raises(ReportError, match="not JSON"):
        loads(b'{"schema_version": "\xff"}')


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="can't read"):
        load(tmp_path / "r.json")
    with pytest.raises(ReportError, match="can't read"):
        load(tmp_path)


def test_a_large_file_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "LARGEST_FILE_BYTES", 1_000_000)
    path = tmp_path / "r.json"
    path.write_bytes(b"[" * 1_000_001)
    with pytest.raises(ReportError, match="larger than 1 MB"):
        load(path)


def test_load_reads_what_dump_wrote(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(dump(single_device()))
    assert load(path) == single_device()


def test_published_schema(golden) -> None:
    golden("schema.json", schema(), folder=Path(model.__file__).parent)


def test_jupyter_shows_the_page() -> None:
    assert single_device()._repr_markdown_().startswith("# advisor: GPT(GPTConfig())")
