from dataclasses import replace
from pathlib import Path

import pytest
from fabricated_reports import DISTRIBUTED, SINGLE, data_parallel, estimate, infeasible, single_device, undetermined

from advisor.cost.estimate import FitVerdict
from advisor.errors import ReportError
from advisor.gate import Policy, Undetermined, evaluate, load_policy, parse_policy
from advisor.report.model import Report

DAY = 86_400.0


def passed(report: Report, **limits: object) -> bool | None:
    return evaluate(report, Policy(**limits)).passed


@pytest.mark.parametrize(
    ("report", "limits", "expected"),
    [
        (single_device(), {}, True),
        (infeasible(), {}, False),
        (infeasible(), {"undetermined": Undetermined.PASS}, False),
        # devices: the plan takes 1, or 8
        (single_device(), {"max_devices": 1}, True),
        (data_parallel(), {"max_devices": 8}, True),
        (data_parallel(), {"max_devices": 7}, False),
        # memory of one A100: 33.1 of 39.4 GiB is 84 %, band 82 to 89 %
        (single_device(), {"max_memory_fraction": 0.90}, True),
        (single_device(), {"max_memory_fraction": 0.85}, None),
        (single_device(), {"max_memory_fraction": 0.80}, False),
        # 3.71 days, band 3.26 to 4.26
        (single_device(), {"deadline_s": 5 * DAY}, True),
        (single_device(), {"deadline_s": 4 * DAY}, None),
        (single_device(), {"deadline_s": 3 * DAY}, False),
        # $115, band 101 to 132
        (single_device(), {"max_cost_usd": 140.0}, True),
        (single_device(), {"max_cost_usd": 120.0}, None),
        (single_device(), {"max_cost_usd": 100.0}, False),
        # one device is enough, or not
        (single_device(), {"fail_if_single_device": True}, False),
        (data_parallel(), {"fail_if_single_device": True}, True),
        # one failure outweighs what is not decided
        (single_device(), {"max_cost_usd": 120.0, "max_memory_fraction": 0.5}, False),
        # one exact configuration
        (estimate(), {"max_devices": 8, "max_memory_fraction": 0.9}, True),
        (estimate(), {"max_devices": 4}, False),
    ],
)
def test_limits(report: Report, limits: dict, expected: bool | None) -> None:
    assert passed(report, **limits) is expected


@pytest.mark.parametrize(
    ("undetermined_is", "expected"),
    [(Undetermined.FAIL, False), (Undetermined.PASS, True), (Undetermined.UNANSWERED, None)],
)
@pytest.mark.parametrize(
    ("report", "limits"),
    [
        (undetermined(), {}),
        (undetermined(), {"fail_if_single_device": True}),
        (undetermined(), {"deadline_s": DAY}),  # no goal
        (single_device(), {"max_cost_usd": 120.0}),  # inside the band
        (single_device().model_copy(update={"single": replace(SINGLE, cost_usd=None)}), {"max_cost_usd": 1e6}),
    ],
)
def test_the_policy_says_what_undetermined_means(
    report: Report, limits: dict, undetermined_is: Undetermined, expected: bool | None
) -> None:
    result = evaluate(report, Policy(**limits, undetermined=undetermined_is))
    assert result.passed is expected
    assert result.exit_code == {True: 0, False: 1, None: 2}[expected]


def test_a_feasible_verdict_without_its_plan_is_judged_by_the_plan_shown() -> None:
    broken = single_device().model_copy(update={"single": None, "nearest_single": None})
    assert passed(broken, max_memory_fraction=0.9) is False  # as it is: 61 of 39 GiB


def test_a_configuration_that_does_not_fit_fails() -> None:
    too_large = estimate().model_copy(update={"baseline": single_device().baseline})
    assert passed(too_large) is False
    memory = replace(DISTRIBUTED.estimate.memory, verdict=FitVerdict.UNDETERMINED)
    unsure = replace(DISTRIBUTED, estimate=replace(DISTRIBUTED.estimate, memory=memory))
    assert passed(estimate().model_copy(update={"baseline": unsure})) is None


def test_each_check_says_what_it_saw() -> None:
    checks = {
        check.name: check for check in evaluate(single_device(), Policy(max_devices=4, deadline_s=4 * DAY)).checks
    }
    assert checks["max_devices"].sentence == "the plan takes 1 of at most 4 devices"
    assert checks["deadline"].observed == "3.71 days predicted, 3.26 days to 4.26 days"
    assert checks["verdict"].observed == "single-device"


def test_a_blank_says_why() -> None:
    report = single_device().model_copy(update={"single": replace(SINGLE, cost_usd=None)})
    check = evaluate(report, Policy(max_cost_usd=1.0)).checks[-1]
    assert "no price for a100-sxm4-40gb" in check.sentence


def test_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        'max_devices = 8\nmax_cost = "500 USD"\nmax_memory_fraction = 0.9\ndeadline = "36h"\n'
        'fail_if_single_device = true\nundetermined = "fail"\n'
    )
    assert load_policy(path) == Policy(
        max_devices=8,
        max_cost_usd=500.0,
        max_memory_fraction=0.9,
        deadline_s=36 * 3600.0,
        fail_if_single_device=True,
        undetermined=Undetermined.FAIL,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_device": 8}, "unknown key 'max_device'"),
        ({"max_devices": 0}, "whole number"),
        ({"max_devices": True}, "whole number"),
        ({"max_devices": "8"}, "whole number"),
        ({"max_cost": 500}, "text with its unit"),
        ({"max_cost": "500"}, "bare number"),
        ({"max_memory_fraction": 90}, "fraction"),
        ({"deadline": 5}, "text with its unit"),
        ({"deadline": "5 GiB"}, "a duration is due"),
        ({"fail_if_single_device": "yes"}, "true or false"),
        ({"undetermined": "maybe"}, "one of fail, pass, unanswered"),
        ({"undetermined": []}, "one of fail, pass, unanswered"),
    ],
)
def test_bad_policies(values: dict, message: str) -> None:
    with pytest.raises(ReportError, match=message):
        parse_policy(values, name="policy.toml")


def test_unknown_key_names_the_closest() -> None:
    with pytest.raises(ReportError) as raised:
        parse_policy({"max_device": 8})
    assert "did you mean 'max_devices'?" in raised.value.hint


@pytest.mark.parametrize("content", [b"max_devices =", b"\xff", b"a = " + b"[" * 10_000, b"x = " + b"9" * 5000])
def test_broken_policy_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(content)
    with pytest.raises(ReportError, match=r"is not TOML|unknown key"):
        load_policy(path)


def test_large_or_missing_policy_files(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="can't read"):
        load_policy(tmp_path / "policy.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * 1_000_001)
    with pytest.raises(ReportError, match="larger than 1 MB"):
        load_policy(tmp_path / "large.toml")
