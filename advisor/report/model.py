"""`Report`: what advisor found, in SI units, as it is stored and shared. The types say which numbers are what.

Inside an `Estimate` (and a `Candidate`'s finish, cost, throughput, efficiency) every number is *predicted*; inside a
`Measurement` *measured*; goal, settings, prices and datasheet facts are *assumed*: stated, with their source.

Same inputs, same bytes: no timestamps, no paths of the machine, keys sorted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pydantic_core
from pydantic import BaseModel, ConfigDict, ValidationError

from advisor.advice.result import LearningRateAdvice
from advisor.errors import ReportError
from advisor.hardware.profile import ClusterProfile, DeviceProfile
from advisor.search.plan import Candidate, Goal, Rejection, Rung, ScalingPoint, Sensitivity, Verdict, VerdictKind
from advisor.workload.spec import WorkloadDescription

SCHEMA_VERSION = "1"
LARGEST_FILE_BYTES = 50_000_000
_HOW_TO_WRITE = "write a report with: advisor assess TARGET -o r.json"
_LARGEST_INTEGER = 2**63 - 1  # what other JSON readers take, and what still divides as a float


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting and who won: "flag", "advisor.toml", "pyproject.toml", "ADVISOR in model.py", "default"."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """Code the user would paste to get one option or strategy of the recommended setup."""

    title: str
    code: str
    language: str = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the numbers stand on."""

    advisor_version: str
    input_hash: str  # SHA-256 over everything that went in
    known_error: str = ""  # error for this class of model on this class of device; "" where nothing was compared
    rates: tuple[str, ...] = ()  # every rate and constant used, with its source
    notes: tuple[str, ...] = ()  # what was assumed, redirected or not traced


class Report(BaseModel):
    """The root of the stored report; nested parts are the plain dataclasses of the rooms that made them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, revalidate_instances="always")

    schema_version: Literal["1"] = "1"
    question: Literal["assess", "estimate", "measure"] = "assess"
    description: WorkloadDescription
    model_class: str = ""  # of the root module
    tokens_per_sample: int | None = None  # where the batch is token ids
    num_parameters: int | None = None
    num_trainable_parameters: int | None = None
    settings: tuple[Setting, ...] = ()
    goal: Goal
    device: DeviceProfile
    cluster: ClusterProfile | None = None
    verdict: Verdict | None = None  # `assess` only
    baseline: Candidate  # as it is; for `estimate` and `measure` the configuration asked about
    single: Candidate | None = None
    nearest_single: Candidate | None = None
    distributed: Candidate | None = None
    ladder: tuple[Rung, ...] = ()
    scaling: tuple[ScalingPoint, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    max_micro_batch_size: int | None = None
    max_sequence_length: int | None = None
    pays_from_devices: int | None = None
    pays_until_devices: int | None = None
    learning_rate: LearningRateAdvice | None = None  # for the recommended plan
    learning_rate_distributed: LearningRateAdvice | None = None  # for the plan beside it, where one device is enough
    sensitivities: tuple[Sensitivity, ...] = ()
    snippets: tuple[Snippet, ...] = ()
    confirm_command: str = ""  # the command that measures the recommended setup on the device
    evidence: Evidence

    @property
    def recommended(self) -> Candidate | None:
        """The plan the verdict stands for; None where nothing meets the limits."""
        if self.verdict is None:
            return self.baseline
        if self.verdict.kind is VerdictKind.INFEASIBLE:
            return None
        return self.single if self.verdict.kind is VerdictKind.SINGLE_DEVICE else self.distributed

    @property
    def subject(self) -> Candidate:
        """The plan whose memory and time the page breaks down: the recommended one, else the nearest miss."""
        return self.recommended or self.nearest_single or self.baseline

    def _repr_markdown_(self) -> str:
        """What Jupyter shows."""
        from advisor.report.formats.markdown import FORMAT
        from advisor.report.view import sections

        return FORMAT.render(sections(self), self)


def dump(report: Report) -> str:
    """The report as JSON: the same report always gives the same bytes."""
    return json.dumps(report.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False) + "\n"


def schema() -> str:
    """The published JSON schema of a stored report (`advisor/report/schema.json`)."""
    return json.dumps(Report.model_json_schema(), indent=1, sort_keys=True) + "\n"


def load(path: Path) -> Report:
    """Read a stored report. Raises `ReportError` for anything that is not one."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE_BYTES + 1)  # never more, whatever the file system says about its size
    except OSError as error:
        raise ReportError(f"can't read {path}: {error.strerror or error}", hint=_HOW_TO_WRITE) from None
    return loads(text, name=str(path))


def loads(text: str | bytes, *, name: str = "report") -> Report:
    """A report from its JSON text; `name` is what errors call it."""
    if len(text) > LARGEST_FILE_BYTES:
        raise ReportError(f"{name} is larger than {LARGEST_FILE_BYTES // 10**6} MB", hint="no report is that large")
    try:
        content = pydantic_core.from_json(text, allow_inf_nan=False)  # refuses nesting deeper than 200
    except ValueError as error:
        raise ReportError(f"{name} is not JSON: {error}", hint=_HOW_TO_WRITE) from None
    _refuse_huge_integers(content, name)
    if not isinstance(content, dict) or "schema_version" not in content:
        raise ReportError(f"{name} is JSON but not a report of advisor", hint=_HOW_TO_WRITE)
    if (version := content["schema_version"]) != SCHEMA_VERSION:
        raise ReportError(
            f"{name} has schema version {str(version)[:40]!r}; this advisor reads {SCHEMA_VERSION!r}",
            hint="read it with the version of advisor that wrote it, or assess again",
        )
    try:
        return Report.model_validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the root"
        raise ReportError(
            f"{name} is not a valid report: {where}: {first['msg']}", hint="it was changed by hand or cut: assess again"
        ) from None


def _refuse_huge_integers(content: object, name: str) -> None:
    """JSON puts no bound on integers; one of a million digits would stop arithmetic and printing."""
    todo = [content]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
        elif isinstance(item, int) and abs(item) > _LARGEST_INTEGER:
            raise ReportError(f"{name} is not a valid report: it holds an integer of more than 63 bits")
