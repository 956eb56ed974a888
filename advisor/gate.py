"""`Report` + `Policy` -> `GateResult`: may this job have what it asks for? No torch, no user code.

A limit inside the report's error band can't be decided, nor can one on a figure that is blank. `undetermined` says what
that counts as. Relaxing a limit never turns a pass into a fail.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from advisor.cost.estimate import FitVerdict
from advisor.errors import ReportError, UsageError
from advisor.report import phrases
from advisor.report.model import Report
from advisor.search.plan import Candidate, Verdict, VerdictKind
from advisor.units import format_percent, format_seconds, format_usd, parse_seconds, parse_usd

T = TypeVar("T")

FLAGS = "flags"  # the name of a policy that the command line says
_LARGEST_POLICY_BYTES = 1_000_000
_KEYS = ("max_devices", "max_cost", "max_memory_fraction", "deadline", "fail_if_single_device", "undetermined")


class Undetermined(StrEnum):
    """What a check counts as that can't be decided."""

    FAIL = "fail"
    PASS = "pass"
    UNANSWERED = "unanswered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits on the recommended plan; one that is None is not checked."""

    max_devices: int | None = None
    max_cost_usd: float | None = None
    max_memory_fraction: float | None = None  # required of usable, 0..1
    deadline_s: float | None = None
    fail_if_single_device: bool = False
    undetermined: Undetermined = Undetermined.UNANSWERED


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str  # as in the policy file
    observed: str
    limit: str
    passed: bool | None  # None: not decided
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool | None:
        """False if any check failed, else None if any was not decided."""
        outcomes = [check.passed for check in self.checks]
        return False if False in outcomes else None if None in outcomes else True

    @property
    def exit_code(self) -> int:
        return {True: 0, False: 1, None: 2}[self.passed]


def evaluate(report: Report, policy: Policy) -> GateResult:
    """Check the recommended plan (of an estimate or a measurement: the configuration asked about)."""
    checks = [_verdict(report)]
    if report.verdict is None or report.verdict.kind is not VerdictKind.INFEASIBLE:
        checks += _limits(report.subject, report, policy)
    counts_as = {Undetermined.FAIL: False, Undetermined.PASS: True, Undetermined.UNANSWERED: None}[policy.undetermined]
    return GateResult(checks=tuple(_decided(check, counts_as) for check in checks))


def _decided(check: Check, counts_as: bool | None) -> Check:
    if check.passed is not None or counts_as is None:
        return check
    sentence = f"{check.sentence}; the policy counts that as {'a pass' if counts_as else 'a failure'}"
    return replace(check, passed=counts_as, sentence=sentence)


def _verdict(report: Report) -> Check:
    """Infeasible can't pass whatever the limits; undetermined is left to the policy."""
    verdict = report.verdict
    if verdict is None:
        memory = report.baseline.estimate.memory
        fits = None if memory.verdict is FitVerdict.UNDETERMINED else memory.fits
        words = {True: "the configuration fits", False: "the configuration does not fit", None: "it may not fit"}
        return Check(name="verdict", observed=str(memory.verdict), limit="fits", passed=fits, sentence=words[fits])
    name, limit = "verdict", "feasible and determined"
    if verdict.undetermined:
        why = f"; what would decide it: {verdict.decide_by}" if verdict.decide_by else ""
        sentence = f"the verdict is undetermined{why}"
        return Check(name=name, observed=f"{verdict.kind}, undetermined", limit=limit, passed=None, sentence=sentence)
    feasible = verdict.kind is not VerdictKind.INFEASIBLE
    sentence = "a plan meets the limits it was assessed with" if feasible else verdict.sentence
    return Check(name=name, observed=str(verdict.kind), limit=limit, passed=feasible, sentence=sentence)


def _limits(candidate: Candidate, report: Report, policy: Policy) -> Iterator[Check]:
    memory, time = candidate.estimate.memory, candidate.estimate.time
    if policy.max_devices is not None:
        count = candidate.plan.num_devices
        yield Check(
            name="max_devices",
            observed=str(count),
            limit=str(policy.max_devices),
            passed=count <= policy.max_devices,
            sentence=f"the plan takes {count} of at most {policy.max_devices} devices",
        )
    if policy.max_memory_fraction is not None:
        yield _bounded(
            "max_memory_fraction",
            phrases.ratio(memory.required_bytes, memory.usable_bytes),
            policy.max_memory_fraction,
            spread=_spread(memory.low_bytes, memory.required_bytes, memory.high_bytes),
            form=format_percent,
            unknown="no usable memory is known",
        )
    # Time to finish and cost are proportional to the step: the band of one is the band of the other.
    spread = (1.0, 1.0) if time is None else _spread(time.low_s, time.step_s, time.high_s)
    if policy.deadline_s is not None:
        unknown = "no time to finish is known: the report has no goal or no step time"
        yield _bounded(
            "deadline", candidate.finish_s, policy.deadline_s, spread=spread, form=format_seconds, unknown=unknown
        )
    if policy.max_cost_usd is not None:
        unknown = f"no cost is known: no goal, or no price for {report.device.name}"
        yield _bounded(
            "max_cost", candidate.cost_usd, policy.max_cost_usd, spread=spread, form=format_usd, unknown=unknown
        )
    if policy.fail_if_single_device and report.verdict is not None:
        yield _single_device(report.verdict)


def _spread(low: float, value: float, high: float) -> tuple[float, float]:
    """The band as factors of the value."""
    return (low / value, high / value) if value else (1.0, 1.0)


def _bounded(
    name: str,
    value: float | None,
    limit: float,
    *,
    spread: tuple[float, float],
    form: Callable[[float], str],
    unknown: str,
) -> Check:
    """Passes with its whole band below the limit, fails with its whole band above it."""
    if value is None:
        return Check(name=name, observed="unknown", limit=form(limit), passed=None, sentence=unknown)
    low, high = value * min(1.0, *spread), value * max(1.0, *spread)
    passed = True if high <= limit else False if low > limit else None
    sides = {True: "within", False: "over", None: "with its error band on both sides of"}
    observed = f"{form(value)} predicted, {form(low)} to {form(high)}"
    sentence = f"{form(value)} is {sides[passed]} the limit of {form(limit)}"
    return Check(name=name, observed=observed, limit=form(limit), passed=passed, sentence=sentence)


def _single_device(verdict: Verdict) -> Check:
    enough = verdict.kind is VerdictKind.SINGLE_DEVICE
    sentence = "one device is enough: no cluster is needed" if enough else "one device is not enough"
    if verdict.undetermined:
        sentence = "whether one device is enough is undetermined"
    return Check(
        name="fail_if_single_device",
        observed=str(verdict.kind),
        limit="more than one device needed",
        passed=None if verdict.undetermined else not enough,
        sentence=sentence,
    )


def load_policy(path: Path) -> Policy:
    """A policy file in TOML. Raises `ReportError` for anything that is not one."""
    return parse_policy(read_policy(path), name=str(path))


def read_policy(path: Path) -> dict[str, object]:
    """The keys of a policy file, not yet checked."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_POLICY_BYTES + 1)
    except OSError as error:
        raise ReportError(f"can't read {path}: {error.strerror or error}") from None
    if len(content) > _LARGEST_POLICY_BYTES:
        raise ReportError(f"{path} is larger than {_LARGEST_POLICY_BYTES // 10**6} MB", hint="no policy is that large")
    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number too long, nested too deeply
        raise ReportError(f"{path} is not TOML: {error}") from None


def parse_policy(values: Mapping[str, object], *, name: str = "policy") -> Policy:
    """A policy from its keys; `name` is what errors call it."""
    for key in values:
        if key not in _KEYS:
            close = difflib.get_close_matches(key, _KEYS, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise ReportError(f"{name}: unknown key {key!r}", hint=f"{meant}known: {', '.join(_KEYS)}")
    return Policy(
        max_devices=_read(values, "max_devices", _count, name),
        max_cost_usd=_read(values, "max_cost", _usd, name),
        max_memory_fraction=_read(values, "max_memory_fraction", _fraction, name),
        deadline_s=_read(values, "deadline", _seconds, name),
        fail_if_single_device=_read(values, "fail_if_single_device", _flag, name) or False,
        undetermined=_read(values, "undetermined", _undetermined, name) or Undetermined.UNANSWERED,
    )


def _read(values: Mapping[str, object], key: str, reader: Callable[[object], T], name: str) -> T | None:
    if key not in values:
        return None
    try:
        return reader(values[key])
    except (TypeError, UsageError) as error:
        said = f"--{key.replace('_', '-')}" if name == FLAGS else f"{name}: {key}"
        hint = error.hint if isinstance(error, UsageError) else None
        raise ReportError(f"{said} = {values[key]!r}: {error}", hint=hint) from None


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TypeError("a whole number from 1 on is due")
    return value


def _fraction(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise TypeError("a fraction above 0 and up to 1 is due")
    return float(value)


def _usd(value: object) -> float:
    return parse_usd(_text(value, "'500 USD'"))


def _seconds(value: object) -> float:
    return parse_seconds(_text(value, "'5d'"))


def _text(value: object, example: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text with its unit is due, such as {example}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false is due")
    return value


def _undetermined(value: object) -> Undetermined:
    if value not in tuple(Undetermined):
        raise TypeError(f"one of {', '.join(Undetermined)} is due")
    return Undetermined(str(value))
