"""The verdict: what the two best recipes mean for the question, and what is not known well enough to say."""

from __future__ import annotations

from advisor.cost.estimate import Estimate, FitVerdict
from advisor.search.candidates import Pricer, finish_band, fits
from advisor.search.device import DeviceSearch
from advisor.search.parallel import ParallelSearch
from advisor.search.plan import Candidate, Verdict, VerdictKind
from advisor.units import format_bytes, format_percent, format_seconds

# product: operators without a price above this share of the step make the verdict undetermined.
UNPRICED_SHARE = 0.02


def decide(pricer: Pricer, single: DeviceSearch, parallel: ParallelSearch | None) -> Verdict:
    """One device if it does the job, else the data axis, else splitting the model; or nothing helps."""
    one = single.best
    many = None if parallel is None else parallel.best
    if one is not None and (pricer.meets_goal(one) or _finish_unknown(one, pricer)):
        return _verdict(VerdictKind.SINGLE_DEVICE, one, pricer, _single_sentence(one, pricer))
    if many is not None and (pricer.meets_goal(many) or _finish_unknown(many, pricer)):
        return _verdict(VerdictKind.DATA_PARALLEL, many, pricer, _parallel_sentence(many, one, pricer))
    if one is None and many is None and pricer.cluster is not None and parallel is not None:
        return _split_or_nothing(pricer, single, parallel)
    return _missed(pricer, single, many)


def _finish_unknown(candidate: Candidate, pricer: Pricer) -> bool:
    return pricer.goal.deadline_s is not None and candidate.finish_s is None and candidate.estimate.time is None


def _verdict(kind: VerdictKind, candidate: Candidate, pricer: Pricer, sentence: str) -> Verdict:
    doubts = _doubts(candidate, pricer)
    margin = _margin(candidate, pricer)
    if not doubts:
        return Verdict(kind=kind, undetermined=False, sentence=sentence, margin=margin)
    return Verdict(
        kind=kind,
        undetermined=True,
        sentence=f"{sentence} Undetermined: {'; '.join(doubt for doubt, _ in doubts)}.",
        margin=margin,
        decide_by=doubts[0][1],
    )


def _doubts(candidate: Candidate, pricer: Pricer) -> list[tuple[str, str]]:
    """What is not known well enough, each with the cheapest way to know it."""
    doubts: list[tuple[str, str]] = []
    memory, time, goal = candidate.estimate.memory, candidate.estimate.time, pricer.goal
    on_device = f"run `advisor measure` with this recipe on one {pricer.device.title}: a few steps"
    if memory.verdict is FitVerdict.UNDETERMINED:
        doubts.append(("the memory band straddles what is usable", on_device))
    if time is None and not _was_timed(candidate):
        doubts.append(("this device has no known rates, so time is left blank", on_device))
    elif goal.samples is None:
        doubts.append(
            ("how long the job may take was not said", "give --samples, --tokens or --steps (and --deadline)")
        )
    elif goal.deadline_s is not None and (band := finish_band(candidate)) is not None:
        low, high = band
        if low <= goal.deadline_s < high:
            doubts.append(("the time band straddles the deadline", on_device))
    if (share := unpriced_share(candidate.estimate)) > UNPRICED_SHARE:
        doubts.append((f"{format_percent(share)} of the step is operators without a price", on_device))
    return doubts


def _was_timed(candidate: Candidate) -> bool:
    return candidate.measurement is not None and candidate.measurement.step_time_s is not None


def unpriced_share(estimate: Estimate) -> float:
    """Upper bound of the share of the step that operators without a price take."""
    if estimate.time is None or not estimate.time.unpriced:
        return 0.0
    bound = sum(op.bound_seconds for op in estimate.time.unpriced)
    return bound / max(estimate.time.step_s, bound)


def _margin(candidate: Candidate, pricer: Pricer) -> str:
    memory = candidate.estimate.memory
    parts = [f"uses {format_percent(memory.required_bytes / memory.usable_bytes)} of usable memory"]
    deadline = pricer.goal.deadline_s
    if deadline is not None and candidate.finish_s is not None:
        parts.append(f"finishes in {format_percent(candidate.finish_s / deadline)} of the deadline")
    if pricer.goal.budget_usd is not None and candidate.cost_usd is not None:
        parts.append(f"costs {format_percent(candidate.cost_usd / pricer.goal.budget_usd)} of the budget")
    return ", ".join(parts)


def _finishing(candidate: Candidate) -> str:
    if candidate.finish_s is not None:
        return f" and finishes in {format_seconds(candidate.finish_s)} ({_label(candidate)})"
    if candidate.samples_per_s is not None:
        return f" at {candidate.samples_per_s:.3g} samples/s ({_label(candidate)})"
    return ""


def _label(candidate: Candidate) -> str:
    """Where the time comes from: a run, where nothing was predicted."""
    return "from the measured step" if candidate.estimate.time is None else "predicted"


def _single_sentence(one: Candidate, pricer: Pricer) -> str:
    return f"No cluster needed: one {pricer.device.title} holds this job{_finishing(one)}."


def _parallel_sentence(many: Candidate, one: Candidate | None, pricer: Pricer) -> str:
    deadline = pricer.goal.deadline_s
    if one is None:
        why = f"it does not fit on one {pricer.device.title}"
    elif one.finish_s is not None and deadline is not None and one.finish_s > deadline:
        takes, allowed = format_seconds(one.finish_s), format_seconds(deadline)
        why = f"one {pricer.device.title} would take {takes}, the deadline is {allowed}"
    else:
        why = f"one {pricer.device.title} misses the budget"
    doing = _finishing(many).removeprefix(" and") or " does it"
    return f"Data parallelism on {many.plan.num_devices} devices ({many.plan.strategy}){doing}: {why}."


def _split_or_nothing(pricer: Pricer, single: DeviceSearch, parallel: ParallelSearch) -> Verdict:
    """Nothing on the data axis fits. Splitting the model n ways can at best divide what one device needs by n."""
    largest = max((point.num_devices for point in parallel.scaling), default=1)
    memory = single.nearest.estimate.memory
    floor = memory.required_bytes / largest
    usable = format_bytes(memory.usable_bytes)
    fewest = -(-memory.required_bytes // memory.usable_bytes)
    deadline, finish = pricer.goal.deadline_s, single.nearest.finish_s
    if deadline is not None and finish is not None and finish / largest > deadline:
        at_best = format_seconds(finish / largest)
        return Verdict(
            kind=VerdictKind.INFEASIBLE,
            undetermined=False,
            sentence=f"Infeasible: split perfectly over {largest} devices it would still take {at_best}.",
            margin=f"the deadline is {format_seconds(deadline)}",
            would_have_to_give=f"a deadline of {at_best} or longer, or more than {largest} devices",
        )
    if floor <= memory.usable_bytes:
        return Verdict(
            kind=VerdictKind.MODEL_PARALLEL,
            undetermined=True,
            sentence=(
                f"The model itself must be split: no data-parallel setup on up to {largest} devices fits. "
                "Undetermined: tensor, pipeline, context and expert parallelism are not searched yet."
            ),
            margin=f"a perfect split over {largest} devices would need {format_bytes(floor)} of {usable} each",
            decide_by="a dry run of the split with torchtitan or Megatron-LM on the devices",
        )
    return Verdict(
        kind=VerdictKind.INFEASIBLE,
        undetermined=False,
        sentence=f"Infeasible: even split perfectly over {largest} devices it does not fit.",
        margin=f"would need {format_bytes(floor)} of {usable} on each device",
        would_have_to_give=f"at least {fewest} such devices, or a smaller model",
    )


def _missed(pricer: Pricer, single: DeviceSearch, many: Candidate | None) -> Verdict:
    """Something may fit, but nothing that was allowed meets the limits."""
    one = single.best
    goal = pricer.goal
    nearest = min(
        (c for c in (one, many) if c is not None and c.finish_s is not None),
        key=lambda c: c.finish_s or 0.0,
        default=None,
    )
    if nearest is None:
        memory = single.nearest.estimate.memory
        short = max(memory.high_bytes - memory.usable_bytes, 0)
        cluster = "" if pricer.cluster is not None else "; or give --cluster"
        return Verdict(
            kind=VerdictKind.INFEASIBLE,
            undetermined=memory.verdict is FitVerdict.UNDETERMINED,
            sentence=f"Infeasible on one {pricer.device.title}: the leanest recipe tried lacks {format_bytes(short)}.",
            margin=f"needs {format_bytes(memory.required_bytes)} of {format_bytes(memory.usable_bytes)}",
            decide_by=f"run `advisor measure` with the leanest recipe on one {pricer.device.title}"
            if memory.verdict is FitVerdict.UNDETERMINED
            else None,
            would_have_to_give=f"a device with {format_bytes(memory.high_bytes)}, or a smaller model{cluster}",
        )
    assert nearest.finish_s is not None
    gives = []
    if goal.deadline_s is not None and nearest.finish_s > goal.deadline_s:
        gives.append(f"a deadline of {format_seconds(nearest.finish_s)} instead of {format_seconds(goal.deadline_s)}")
    if goal.budget_usd is not None and nearest.cost_usd is not None and nearest.cost_usd > goal.budget_usd:
        gives.append(f"a budget of ${nearest.cost_usd:,.0f} instead of ${goal.budget_usd:,.0f}")
    where = f"{nearest.plan.num_devices} devices" if nearest.plan.num_devices > 1 else f"one {pricer.device.title}"
    doubts = _doubts(nearest, pricer) if fits(nearest) else []
    return Verdict(
        kind=VerdictKind.INFEASIBLE,
        undetermined=bool(doubts),
        sentence=f"Infeasible within the limits: the nearest miss is {where}{_finishing(nearest)}.",
        margin=_margin(nearest, pricer),
        decide_by=doubts[0][1] if doubts else None,
        would_have_to_give=" and ".join(gives)
        + ("" if pricer.cluster is not None or nearest.plan.num_devices > 1 else "; or give --cluster"),
    )
