"""Results of the search, or of one configuration -> `Report`: trimmed, hashed, with the code that reproduces them."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Literal

import pydantic_core

from advisor.advice.result import LearningRateAdvice
from advisor.hardware.profile import ClusterProfile, DeviceProfile
from advisor.measure.result import Measurement
from advisor.options.base import USUAL_NAMES, Names, Option
from advisor.parallel.base import Strategy
from advisor.report.block_names import blocks_expression
from advisor.report.model import Evidence, Report, Setting, Snippet
from advisor.search.plan import Candidate, Goal, Rejection, Rung, ScalingPoint, SearchResult, Sensitivity
from advisor.trace.records import StepTrace
from advisor.version import __version__
from advisor.workload.spec import WorkloadDescription

_NUM_MODULES = 200  # what a picture can show; a 405 B model has two thousand
_TARGET_FLAGS = ("model", "batch", "input", "target", "loss", "optimizer", "call")


def build_report(
    result: SearchResult,
    description: WorkloadDescription,
    *,
    settings: Sequence[Setting] = (),
    options: Mapping[str, Option],
    strategies: Mapping[str, Strategy],
    trace: StepTrace | None = None,
    learning_rate: LearningRateAdvice | None = None,
    learning_rate_distributed: LearningRateAdvice | None = None,
    sensitivities: Sequence[Sensitivity] = (),
    baseline_measurement: Measurement | None = None,
    single_measurement: Measurement | None = None,
    known_error: str = "",
) -> Report:
    """The report of `assess`.

    Args:
        options, strategies: as discovered; their titles and snippets go on the page.
        trace: the step as it is, for the parameter counts and the names of things.
        learning_rate, learning_rate_distributed: advice on the recommended plan, and on the other one beside it.
        baseline_measurement, single_measurement: runs made here of the step as it is and of the best recipe.
        known_error: prediction error on record for this class of model on this class of device.
    """
    description = _portable(description)
    report = Report(
        description=description,
        model_class=_root_class(trace),
        tokens_per_sample=trace.tokens_per_sample if trace else None,
        num_parameters=trace.num_parameters if trace else None,
        num_trainable_parameters=trace.num_trainable_parameters if trace else None,
        settings=tuple(settings),
        goal=result.goal,
        device=result.device,
        cluster=result.cluster,
        verdict=result.verdict,
        baseline=_headline(result.baseline, baseline_measurement),
        single=None if result.single is None else _headline(result.single, single_measurement),
        nearest_single=_headline(result.nearest_single),
        distributed=None if result.distributed is None else _headline(result.distributed),
        ladder=tuple(_rung(rung) for rung in result.ladder),
        scaling=tuple(_point(point) for point in result.scaling),
        rejections=tuple(_rejection(rejection) for rejection in result.rejections),
        max_micro_batch_size=result.max_micro_batch_size,
        max_sequence_length=result.max_sequence_length,
        pays_from_devices=result.pays_from_devices,
        pays_until_devices=result.pays_until_devices,
        learning_rate=learning_rate,
        learning_rate_distributed=learning_rate_distributed,
        sensitivities=tuple(sensitivities),
        evidence=Evidence(
            advisor_version=__version__,
            input_hash=_input_hash(description, settings, result.goal, result.device, result.cluster, result.notes),
            known_error=known_error,
            notes=result.notes,
        ),
    )
    return _with_what_to_do(report, options, strategies, trace)


def build_configuration_report(
    question: Literal["estimate", "measure"],
    candidate: Candidate,
    description: WorkloadDescription,
    *,
    goal: Goal,
    device: DeviceProfile,
    cluster: ClusterProfile | None = None,
    settings: Sequence[Setting] = (),
    options: Mapping[str, Option],
    strategies: Mapping[str, Strategy],
    trace: StepTrace | None = None,
    known_error: str = "",
    notes: Sequence[str] = (),
) -> Report:
    """The report of one exact configuration: `estimate` or, with a measurement in the candidate, `measure`."""
    description = _portable(description)
    report = Report(
        question=question,
        description=description,
        model_class=_root_class(trace),
        tokens_per_sample=trace.tokens_per_sample if trace else None,
        num_parameters=trace.num_parameters if trace else None,
        num_trainable_parameters=trace.num_trainable_parameters if trace else None,
        settings=tuple(settings),
        goal=goal,
        device=device,
        cluster=cluster,
        baseline=_headline(candidate),
        evidence=Evidence(
            advisor_version=__version__,
            input_hash=_input_hash(description, settings, goal, device, cluster, notes),
            known_error=known_error,
            notes=tuple(notes),
        ),
    )
    return _with_what_to_do(report, options, strategies, trace)


def _root_class(trace: StepTrace | None) -> str:
    return "" if trace is None else next((module.type_name for module in trace.modules if not module.name), "")


def _portable(description: WorkloadDescription) -> WorkloadDescription:
    """The same report on every machine: an absolute path is cut to its last part, in what was typed and in labels."""
    path, colon, name = description.target.partition(":")
    if not PurePath(path).is_absolute():
        return description
    file = PurePath(path).name
    return replace(description, target=f"{file}{colon}{name}", model=description.model.replace(path, file))


def _input_hash(*inputs: object) -> str:
    content = pydantic_core.to_jsonable_python([__version__, *inputs])
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _headline(candidate: Candidate, measurement: Measurement | None = None) -> Candidate:
    """A candidate with its breakdowns, the long tail of modules summed up."""
    memory = candidate.estimate.memory
    kept, rest = memory.by_module[:_NUM_MODULES], memory.by_module[_NUM_MODULES:]
    if rest:
        kept = (*kept, (f"{len(rest)} other modules", sum(size for _, size in rest)))
    estimate = replace(candidate.estimate, memory=replace(memory, by_module=kept))
    return replace(candidate, estimate=estimate, measurement=measurement or candidate.measurement)


def _line(candidate: Candidate) -> Candidate:
    """A candidate of which the page shows one line: totals, no breakdown."""
    estimate = candidate.estimate
    time = None if estimate.time is None else replace(estimate.time, by_class=(), unpriced=(), sources=())
    memory = replace(estimate.memory, by_module=(), sources=())
    return replace(candidate, estimate=replace(estimate, memory=memory, time=time, notes=()))


def _rung(rung: Rung) -> Rung:
    return rung if rung.candidate is None else replace(rung, candidate=_line(rung.candidate))


def _point(point: ScalingPoint) -> ScalingPoint:
    return point if point.candidate is None else replace(point, candidate=_line(point.candidate))


def _rejection(rejection: Rejection) -> Rejection:
    return replace(rejection, estimate=None)  # the reason has the number that counts


def _with_what_to_do(
    report: Report, options: Mapping[str, Option], strategies: Mapping[str, Strategy], trace: StepTrace | None
) -> Report:
    """The report with snippets, the confirming command, and the sources and notes of the plan the page is about."""
    subject = report.subject
    estimate = subject.estimate
    evidence = replace(
        report.evidence,
        rates=_distinct((*estimate.memory.sources, *(estimate.time.sources if estimate.time else ()))),
        notes=_distinct((*report.evidence.notes, *estimate.notes)),
    )
    return report.model_copy(
        update={
            "snippets": tuple(_snippets(subject, options, strategies, trace)),
            "confirm_command": _confirm_command(report),
            "evidence": evidence,
        }
    )


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _snippets(
    candidate: Candidate,
    options: Mapping[str, Option],
    strategies: Mapping[str, Strategy],
    trace: StepTrace | None,
) -> Iterable[Snippet]:
    """In the order in which options are applied to a model; the strategy wraps the result."""
    plan = candidate.plan
    blocks = "blocks" if trace is None else blocks_expression(trace) or "blocks"
    names = USUAL_NAMES if trace is None else Names(optimizer=trace.optimizer.type_name, blocks=blocks)
    for name, value in sorted(plan.recipe.choices, key=lambda choice: options[choice[0]].order):
        if code := options[name].snippet(value, names):
            yield Snippet(title=f"{options[name].title}: {value}", code=code)
    if plan.strategy is not None and plan.num_devices > 1:
        strategy = strategies[plan.strategy]
        if code := strategy.snippet(plan.mesh, reshard_after_forward=plan.reshard_after_forward, blocks=blocks):
            yield Snippet(title=f"{strategy.title} on {plan.num_devices} devices", code=code)


def _confirm_command(report: Report) -> str:
    """The command line that measures the recipe on the device; a distributed plan can't be run on one."""
    plan = report.subject.plan
    if plan.num_devices > 1 or report.question == "measure":
        return ""
    words = ["advisor", "measure", report.description.target]
    for setting in report.settings:
        if setting.origin.startswith("flag") and setting.name in _TARGET_FLAGS:
            words += [f"--{setting.name}", setting.value]
    words += ["--micro-batch", str(plan.recipe.micro_batch_size)]
    words += ["--global-batch", str(plan.recipe.micro_batch_size * plan.recipe.num_microbatches)]
    for name, value in plan.recipe.choices:
        words += ["--option", f"{name}={value}"]
    return shlex.join(words)
