"""Reports of any content: they come back, they render, and no file brings the reader down."""

import json
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from fabricated_reports import REPORTS, single_device
from hypothesis import HealthCheck, given, settings

from advisor.errors import ReportError
from advisor.gate import Policy, Undetermined, evaluate, parse_policy
from advisor.report.blocks import inert
from advisor.report.formats.markdown import FORMAT as MARKDOWN
from advisor.report.formats.terminal import Terminal
from advisor.report.model import Report, dump, loads
from advisor.report.view import sections

STORED = {name: json.loads(dump(report())) for name, report in REPORTS.items()}
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

numbers = st.one_of(st.integers(-(2**63), 2**63), st.floats(allow_nan=False, allow_infinity=False))
leaves = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20), st.just([]), st.just({}))


def paths(content: object, *, at: tuple = ()) -> list[tuple]:
    """The place of every leaf of a stored report."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    found = [path for key, value in items for path in paths(value, at=(*at, key))]
    return found or [at]


def put(content: object, path: tuple, value: object) -> object:
    """A copy of `content` with `value` at `path`."""
    if not path:
        return value
    copy = dict(content) if isinstance(content, dict) else list(content)
    copy[path[0]] = put(copy[path[0]], path[1:], value)
    return copy


PATHS = {name: paths(content) for name, content in STORED.items()}


def whole_page(report: Report) -> None:
    found = sections(report)
    for text in (Terminal(width=80, colour=False).render(found, report), MARKDOWN.render(found, report)):
        assert text == "\n".join(inert(line) for line in text.split("\n"))
    evaluate(report, Policy(max_devices=8, max_cost_usd=1.0, max_memory_fraction=0.5, deadline_s=1.0))


@QUICK
@given(st.data())
def test_a_changed_leaf_is_refused_or_rendered(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(STORED)))
    content = STORED[name]
    for _ in range(data.draw(st.integers(1, 4))):
        content = put(content, data.draw(st.sampled_from(PATHS[name])), data.draw(leaves))
        content = content if isinstance(content, dict) else {}
        if paths(content) != PATHS[name]:
            break
    try:
        report = loads(json.dumps(content))
    except ReportError:
        return
    whole_page(report)
    assert loads(dump(report)) == report


@QUICK
@given(st.data())
def test_extreme_numbers_are_refused_or_rendered(data: st.DataObject) -> None:
    """Every number of a report at once zero, negative, tiny or huge."""
    value = data.draw(st.sampled_from([0, -1, 1, 2**62, 0.0, -1.5, 5e-324, 1e308]))
    name = data.draw(st.sampled_from(sorted(STORED)))

    def replaced(content: object) -> object:
        if isinstance(content, dict):
            return {key: replaced(item) for key, item in content.items()}
        if isinstance(content, list):
            return [replaced(item) for item in content]
        if isinstance(content, bool) or not isinstance(content, int | float):
            return content
        return int(value) if isinstance(content, int) and abs(value) < 2**63 else value

    try:
        report = loads(json.dumps(replaced(STORED[name])))
    except ReportError:
        return
    whole_page(report)


@QUICK
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_any_bytes_are_refused(content: bytes | str) -> None:
    with pytest.raises(ReportError):
        loads(content)


@QUICK
@given(st.integers(0, 80_000), st.binary(max_size=8))
def test_a_damaged_file_is_refused_or_read(position: int, damage: bytes) -> None:
    text = dump(single_device()).encode()
    try:
        report = loads(text[:position] + damage + text[position + len(damage) :])
    except ReportError:
        return
    whole_page(report)


@QUICK
@given(st.dictionaries(st.sampled_from(["max_devices", "max_cost", "deadline", "undetermined", "x"]), leaves))
def test_any_policy_is_refused_or_read(values: dict) -> None:
    try:
        assert isinstance(parse_policy(values), Policy)
    except ReportError:
        return


limits = st.fixed_dictionaries(
    {},
    optional={
        "max_devices": st.integers(1, 64),
        "max_cost_usd": st.floats(1.0, 1000.0),
        "max_memory_fraction": st.floats(0.01, 1.0),
        "deadline_s": st.floats(3600.0, 1e6),
        "fail_if_single_device": st.booleans(),
    },
)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(sorted(REPORTS)), limits, st.sampled_from(list(Undetermined)), st.data())
def test_relaxing_a_limit_never_turns_pass_into_fail(
    name: str, asked: dict, undetermined: Undetermined, data: st.DataObject
) -> None:
    report = REPORTS[name]()
    policy = Policy(**asked, undetermined=undetermined)
    if not asked or evaluate(report, policy).passed is not True:
        return
    key = data.draw(st.sampled_from(sorted(asked)))
    if key == "fail_if_single_device":
        relaxed = data.draw(st.just(False))
    else:
        relaxed = data.draw(st.one_of(st.none(), st.just(asked[key] * data.draw(st.integers(1, 10)))))
    assert evaluate(report, replace(policy, **{key: relaxed})).passed is True
