"""The order of the stages: session -> search -> report. The only place that knows it."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor.advice.result import LearningRateAdvice
from advisor.cost.rates import rates_for
from advisor.discovery import discover
from advisor.errors import UsageError
from advisor.hardware import catalog, detect
from advisor.hardware.mesh import Mesh
from advisor.hardware.profile import ClusterProfile, DeviceProfile, Sourced
from advisor.measure.result import Measurement, Outcome
from advisor.options.base import Facts, Option, Recipe
from advisor.parallel.base import Strategy
from advisor.report.build import build_configuration_report, build_report
from advisor.report.model import Report, Setting
from advisor.search.candidates import Pricer, Progress, trace_on
from advisor.search.device import search_device
from advisor.search.learning_rate import learning_rate, training_job
from advisor.search.parallel import search_parallel
from advisor.search.plan import Candidate, Goal, Plan, SearchResult, VerdictKind
from advisor.search.select import decide
from advisor.search.sensitivity import sensitivities
from advisor.session.base import Session
from advisor.trace.records import StepTrace
from advisor.units import format_percent
from advisor.workload.sequence_lengths import SequenceLengths

DEFAULT_MICRO_BATCH_SIZE = 1  # only where neither the flags nor the file say; the report shows it as a default
DEFAULT_MAX_DEVICES = 64
MEASURE_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, after flags, files and the user's `ADVISOR` were merged. SI units."""

    device: str | None = None  # profile name or path; None: this machine's own
    device_memory_bytes: int | None = None  # a device known by its memory alone
    cluster: str | None = None
    max_devices: int = DEFAULT_MAX_DEVICES  # only with a cluster
    micro_batch_size: int | None = None  # None: the global batch
    global_batch_size: int | None = None  # None: one micro-batch
    samples: float | None = None
    tokens: float | None = None
    steps: float | None = None
    deadline_s: float | None = None
    budget_usd: float | None = None
    price_usd_per_hour: float | None = None  # per device; overrides the profile's
    learning_rate: float | None = None
    fine_tune: bool = False
    sequence_lengths: SequenceLengths | None = None  # of the data, unpacked
    choices: tuple[tuple[str, str], ...] = ()  # options the user fixed: part of "as it is"
    plan: str | None = None  # estimate only: "fsdp2:8", "hsdp:2x8", "ddp:4"
    measure: bool = True  # only where the device is this machine's own
    settings: tuple[Setting, ...] = field(default=())


def quietly(what: str, share: float | None) -> None:
    """Progress for nobody."""


# ---- the three questions, on a session ----------------------------------------------------------------------------


def assess_session(session: Session, request: Request, progress: Progress = quietly) -> Report:
    """The whole advice: profile as it is, exhaust one device, then distribute as far as it pays."""
    device, is_local = _device(request)
    cluster = _cluster(request, device)
    options, strategies = plugins()
    start = recipe_of(request)
    progress("tracing the step as it is", None)
    trace = trace_on(session, device, start)
    trace, fill = _with_lengths(request, trace)
    pricer = _pricer(session, device, cluster, _goal(request, start, trace, fill), request, progress)
    facts = Facts(
        trace=trace,
        device=device,
        fine_tune=request.fine_tune,
        mean_sequence_fill=fill,
        variants=tuple(session.description.variants),
    )
    single = search_device(pricer, facts, options, start)
    parallel = None
    if cluster is not None and request.max_devices > 1:
        parallel = search_parallel(pricer, facts, options, strategies, single, max_devices=request.max_devices)
    baseline_run, single_run = _measured(session, request, single.baseline, single.best, is_local, progress)
    if single.best is not None and single_run is not None:
        single = replace(single, best=pricer.with_measurement(single.best, single_run))
    verdict = decide(pricer, single, parallel)
    result = SearchResult(
        goal=pricer.goal,
        device=device,
        cluster=cluster,
        baseline=single.baseline,
        single=single.best,
        nearest_single=single.nearest,
        distributed=None if parallel is None else parallel.best,
        ladder=single.ladder,
        scaling=() if parallel is None else parallel.scaling,
        rejections=(*single.rejections, *(() if parallel is None else parallel.rejections)),
        max_micro_batch_size=single.max_micro_batch_size,
        max_sequence_length=single.max_sequence_length,
        verdict=verdict,
        pays_from_devices=None if parallel is None else parallel.pays_from_devices,
        pays_until_devices=None if parallel is None else parallel.pays_until_devices,
        notes=trace.notes,
    )
    advice, advice_beside = _learning_rates(request, trace, start, result)
    return build_report(
        result,
        session.description,
        settings=request.settings,
        options=options,
        strategies=strategies,
        trace=trace,
        learning_rate=advice,
        learning_rate_distributed=advice_beside,
        sensitivities=sensitivities(pricer, result, strategies),
        baseline_measurement=baseline_run,
        single_measurement=single_run,
        known_error=_known_error(device),
    )


def estimate_session(session: Session, request: Request, progress: Progress = quietly) -> Report:
    """Predict one exact configuration, on one device or as one rank of a plan."""
    candidate, trace, device, cluster, goal = configuration(session, request, progress)
    options, strategies = plugins()
    return build_configuration_report(
        "estimate",
        candidate,
        session.description,
        goal=goal,
        device=device,
        cluster=cluster,
        settings=request.settings,
        options=options,
        strategies=strategies,
        trace=trace,
        known_error=_known_error(device),
        notes=trace.notes,
    )


def measure_session(session: Session, request: Request, progress: Progress = quietly) -> Report:
    """Run one configuration for real on this machine, beside its prediction."""
    if request.plan is not None:
        raise UsageError("measure runs one device, and --plan names several", hint="leave --plan out")
    local = replace(request, device=None, device_memory_bytes=None)
    candidate, trace, device, _, goal = configuration(session, local, progress)
    progress("running the step", None)
    measurement = session.measure(candidate.plan.recipe, time_limit_s=MEASURE_LIMIT_S)
    options, strategies = plugins()
    return build_configuration_report(
        "measure",
        replace(candidate, measurement=measurement),
        session.description,
        goal=goal,
        device=device,
        settings=request.settings,
        options=options,
        strategies=strategies,
        trace=trace,
    )


def configuration(
    session: Session, request: Request, progress: Progress
) -> tuple[Candidate, StepTrace, DeviceProfile, ClusterProfile | None, Goal]:
    """One exact configuration priced, with the trace and the hardware it was priced on."""
    device, _ = _device(request)
    cluster = _cluster(request, device)
    recipe = recipe_of(request)
    progress("tracing the step", None)
    trace, fill = _with_lengths(request, trace_on(session, device, recipe))
    goal = _goal(request, recipe, trace, fill)
    pricer = _pricer(session, device, cluster, goal, request, progress)
    if request.plan is None:
        return pricer.single(recipe, "the step"), trace, device, cluster, goal
    if cluster is None:
        raise UsageError(f"--plan {request.plan} needs --cluster", hint="`advisor profiles list` names them")
    _, strategies = plugins()
    plan, strategy = parse_plan(request.plan, recipe, strategies)
    if (reason := strategy.illegal(trace, plan.mesh)) is not None:
        raise UsageError(f"--plan {request.plan}: {reason}")
    return pricer.distributed(plan, strategy), trace, device, cluster, goal


# ---- pieces -------------------------------------------------------------------------------------------------------


def plugins() -> tuple[dict[str, Option], dict[str, Strategy]]:
    return (
        discover("advisor.options", "OPTION", Option),  # type: ignore[type-abstract]
        discover("advisor.parallel", "STRATEGY", Strategy),  # type: ignore[type-abstract]
    )


def check_hardware(request: Request) -> None:
    """Raises `ProfileError` or `UsageError` for a device or cluster that nobody described."""
    if request.device is not None or request.device_memory_bytes is not None:
        device, _ = _device(request)
        _cluster(request, device)


def _device(request: Request) -> tuple[DeviceProfile, bool]:
    """The device asked about, and whether it is this machine's own."""
    if request.device_memory_bytes is not None:
        if request.device is not None:
            raise UsageError("--device and --device-memory name two devices", hint="give one of them")
        return _device_of_memory(request.device_memory_bytes), False
    if request.device is None or request.device == "local":
        return detect.local_device(), True
    if request.device == "cpu":
        return detect.cpu_device(), True
    return catalog.device(request.device), False


def _device_of_memory(num_bytes: int) -> DeviceProfile:
    if num_bytes <= 0:
        raise UsageError(f"--device-memory is {num_bytes} bytes", hint="as in --device-memory 11019MiB")
    return DeviceProfile(
        name="device-memory",
        title=f"device with {num_bytes / 2**30:.1f} GiB",
        vendor="",
        architecture="",
        device_type="cuda",
        memory_capacity=Sourced(value=num_bytes, source="given by the user"),
        notes=("known by its memory alone: traced with the rules of CUDA, step time left blank",),
    )


def _cluster(request: Request, device: DeviceProfile) -> ClusterProfile | None:
    if request.cluster is None:
        return None
    cluster = catalog.cluster(request.cluster)
    if request.device is not None and not Path(request.device).exists() and cluster.device != device.name:
        raise UsageError(
            f"cluster {cluster.name} is made of {cluster.device}, not of {device.name}",
            hint=f"--device {cluster.device}, or another --cluster",
        )
    return cluster


def recipe_of(request: Request) -> Recipe:
    """The step as it is: the micro-batch, accumulated up to the global batch, with the options the user fixed."""
    micro, whole = request.micro_batch_size, request.global_batch_size
    for name, value in (("micro-batch", micro), ("global batch", whole)):
        if value is not None and value < 1:
            raise UsageError(f"the {name} is {value}; it must be at least 1")
    micro = micro or whole or DEFAULT_MICRO_BATCH_SIZE
    whole = whole or micro
    if whole % micro:
        raise UsageError(
            f"the global batch of {whole} is not a multiple of the micro-batch of {micro}",
            hint="give a --micro-batch that divides it",
        )
    options, _ = plugins()
    for name, _ in request.choices:
        if name not in options:
            close = difflib.get_close_matches(name, options, n=1)
            meant = f"did you mean {close[0]!r}? " if close else ""
            raise UsageError(f"no option {name!r}", hint=f"{meant}known: {', '.join(sorted(options))}")
    return Recipe(micro_batch_size=micro, num_microbatches=whole // micro, choices=tuple(sorted(request.choices)))


def _with_lengths(request: Request, trace: StepTrace) -> tuple[StepTrace, float | None]:
    """The trace, noting what is known of the data's lengths, and how full of it a row of the batch is."""
    lengths, row = request.sequence_lengths, trace.tokens_per_sample
    if lengths is None:
        return trace, None
    if row is None:
        raise UsageError("--sequence-lengths needs a batch of token ids, and this one has none", hint="leave it out")
    return replace(trace, notes=(*trace.notes, lengths.note(row))), lengths.mean_fill(row)


def _goal(request: Request, recipe: Recipe, trace: StepTrace, fill: float | None) -> Goal:
    """The goal in samples; where rows are padded, tokens are counted without the padding."""
    whole = recipe.micro_batch_size * recipe.num_microbatches
    lengths = [request.samples, request.tokens, request.steps]
    if sum(length is not None for length in lengths) > 1:
        raise UsageError("samples, tokens and steps are three ways to say one length", hint="give one of them")
    samples = request.samples
    if request.tokens is not None:
        if trace.tokens_per_sample is None:
            raise UsageError("--tokens needs a batch of token ids", hint="give --samples or --steps")
        samples = request.tokens / (trace.tokens_per_sample * (fill or 1.0))
    if request.steps is not None:
        samples = request.steps * whole
    if samples is None and request.deadline_s is not None:
        raise UsageError("a deadline needs the length of the job", hint="give --samples, --tokens or --steps")
    return Goal(global_batch_size=whole, samples=samples, deadline_s=request.deadline_s, budget_usd=request.budget_usd)


def _pricer(
    session: Session,
    device: DeviceProfile,
    cluster: ClusterProfile | None,
    goal: Goal,
    request: Request,
    progress: Progress,
) -> Pricer:
    return Pricer(
        session=session,
        device=device,
        goal=goal,
        cluster=cluster,
        price_usd_per_hour=request.price_usd_per_hour,
        progress=progress,
    )


def parse_plan(text: str, recipe: Recipe, strategies: Mapping[str, Strategy]) -> tuple[Plan, Strategy]:
    """`fsdp2:8`, `ddp:4`, `hsdp:2x8` (replicas x shards); the recipe is a rank's own."""
    name, _, degrees = text.partition(":")
    sizes = degrees.split("x")
    if name not in strategies or not all(size.isdigit() and int(size) > 0 for size in sizes):
        raise UsageError(
            f"--plan {text!r} is not STRATEGY:DEGREE",
            hint=f"as in fsdp2:8 or hsdp:2x8; strategies: {', '.join(sorted(strategies))}",
        )
    strategy = strategies[name]
    if len(sizes) != len(strategy.axes):
        axes = " x ".join(strategy.axes)
        raise UsageError(f"--plan {text!r}: {name} has the axes {axes}", hint=f"give {len(strategy.axes)} degree(s)")
    mesh = Mesh(**dict(zip(strategy.axes, map(int, sizes), strict=True)))
    return Plan(recipe=recipe, mesh=mesh, strategy=name), strategy


def _measured(
    session: Session,
    request: Request,
    baseline: Candidate,
    best: Candidate | None,
    is_local: bool,
    progress: Progress,
) -> tuple[Measurement | None, Measurement | None]:
    """Real runs of the step as it is and of the recommended recipe, where the device is this machine's own."""
    if not (is_local and request.measure):
        return None, None
    if baseline.estimate.memory.fits:
        progress("running the step as it is", None)
        baseline_run = session.measure(baseline.plan.recipe, time_limit_s=MEASURE_LIMIT_S)
    else:
        baseline_run = Measurement(
            outcome=Outcome.OUT_OF_MEMORY, reason="not run: it is predicted not to fit on this machine"
        )
    if best is None or best.plan == baseline.plan:
        return baseline_run, baseline_run if best is not None else None
    progress("running the recommended recipe", None)
    return baseline_run, session.measure(best.plan.recipe, time_limit_s=MEASURE_LIMIT_S)


def _learning_rates(
    request: Request, trace: StepTrace, start: Recipe, result: SearchResult
) -> tuple[LearningRateAdvice, LearningRateAdvice | None]:
    """For the recommended plan; and for the distributed one beside it, where one device is enough."""
    tokens = request.tokens
    if tokens is None and trace.tokens_per_sample is not None and result.goal.samples is not None:
        fill = request.sequence_lengths.mean_fill(trace.tokens_per_sample) if request.sequence_lengths else 1.0
        tokens = trace.tokens_per_sample * fill * result.goal.samples
    job = training_job(trace, learning_rate=request.learning_rate, tokens=tokens, fine_tune=request.fine_tune)
    if result.verdict.kind is VerdictKind.SINGLE_DEVICE and result.single is not None:
        beside = None if result.distributed is None else learning_rate(job, start, result.distributed.plan)
        return learning_rate(job, start, result.single.plan), beside
    return learning_rate(job, start, (result.distributed or result.single or result.nearest_single).plan), None


def _known_error(device: DeviceProfile) -> str:
    rates = rates_for(device)
    if rates is None:
        return ""
    low, high = rates.band
    return (
        f"four of five steps took between {format_percent(low.value)} and {format_percent(high.value)} of the "
        f"predicted time ({low.source})"
    )
