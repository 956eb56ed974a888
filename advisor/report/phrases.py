"""Words for plans, recipes and numbers, shared by all sections of the page. A blank always says why it is blank."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from advisor.cost.estimate import FitVerdict, MemoryEstimate, TimeEstimate
from advisor.measure.result import Measurement, Outcome
from advisor.options.base import Recipe
from advisor.report.model import Report
from advisor.search.plan import Candidate, Goal, Plan
from advisor.units import format_bytes, format_count, format_percent, format_seconds, format_usd

SECONDS_PER_DAY = 86_400.0
NONE = "-"

_FITS = {
    FitVerdict.FITS: "fits",
    FitVerdict.DOES_NOT_FIT: "does not fit",
    FitVerdict.UNDETERMINED: "undetermined",
}


def model_name(report: Report) -> str:
    """What was built, and from which file: "GPT(GPTConfig()) in model.py", "Net of build_model() in model.py"."""
    description = report.description
    label = description.model
    if label.endswith("()") and report.model_class and report.model_class not in label:
        label = f"{report.model_class} of {label}"
    file = PurePath(description.target.partition(":")[0]).name
    return f"{label} in {file}" if file.endswith(".py") else label


def ratio(part: float | None, whole: float | None) -> float | None:
    """A share, None where either side is unknown or there is nothing to share."""
    return None if part is None or not whole else part / whole


def percent(share: float | None, blank: str = NONE) -> str:
    return blank if share is None else format_percent(share)


def times(factor: float | None) -> str:
    """A factor: "0.42 x", "8.1 x"."""
    return NONE if factor is None else f"{factor:.3g} x"


def recipe_label(recipe: Recipe) -> str:
    """Options as `--option` takes them: "checkpointing=all, precision=amp-bf16"."""
    return ", ".join(f"{name}={value}" for name, value in recipe.choices) or "as it is"


def strategy_label(name: str) -> str:
    """The strategy's usual spelling, from its name: "ZeRO-2", "FSDP2"."""
    return name.upper().replace("ZERO", "ZeRO-")


def plan_label(plan: Plan) -> str:
    """How ranks are arranged: "one device", "FSDP2 on 8 devices", "HSDP on 16 devices (2 x 8)"."""
    if plan.num_devices == 1 or plan.strategy is None:
        return devices(plan.num_devices)
    name = strategy_label(plan.strategy)
    mesh = plan.mesh
    degrees = [d for d in (mesh.pp, mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp) if d > 1]
    shape = f" ({' x '.join(map(str, degrees))})" if len(degrees) > 1 else ""
    reshard = "" if plan.reshard_after_forward else ", no reshard after forward"
    return f"{name} on {devices(plan.num_devices)}{shape}{reshard}"


def devices(count: int) -> str:
    return "one device" if count == 1 else f"{count} devices"


def batch_label(candidate: Candidate) -> str:
    """How a step's samples are dealt out: "8 x 4 steps of accumulation x 2 ranks"."""
    plan = candidate.plan
    parts = [str(plan.recipe.micro_batch_size)]
    if plan.recipe.num_microbatches > 1:
        parts.append(f"{plan.recipe.num_microbatches} accumulated")
    if plan.mesh.data_parallel_size > 1:
        parts.append(f"{plan.mesh.data_parallel_size} ranks")
    return " x ".join(parts)


def memory(estimate: MemoryEstimate) -> str:
    """Required bytes beside usable ones: "21.3 of 39.4 GiB"."""
    required, usable = format_bytes(estimate.required_bytes), format_bytes(estimate.usable_bytes)
    number, unit = required.split(" ")
    return f"{number} of {usable}" if usable.endswith(f" {unit}") else f"{required} of {usable}"


def fit(estimate: MemoryEstimate) -> str:
    return _FITS[estimate.verdict]


def step_time(time: TimeEstimate | None, blank: str = NONE) -> str:
    return blank if time is None else format_seconds(time.step_s)


def memory_band(estimate: MemoryEstimate) -> str:
    """The band of required memory: "32.1 to 35.1 GiB"."""
    return _span(format_bytes(estimate.low_bytes), format_bytes(estimate.high_bytes))


def step_band(time: TimeEstimate | None) -> str:
    """The 80 % band of the step: "0.71 to 0.93 s"."""
    return NONE if time is None else _span(format_seconds(time.low_s), format_seconds(time.high_s))


def _span(low: str, high: str) -> str:
    """Both ends, the unit once where it is the same."""
    number, unit = low.split(" ")
    return high if low == high else f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def finish(candidate: Candidate) -> str:
    return NONE if candidate.finish_s is None else format_seconds(candidate.finish_s)


def cost(candidate: Candidate) -> str:
    return NONE if candidate.cost_usd is None else format_usd(candidate.cost_usd)


def why_no_rates(report: Report) -> str:
    return f"no rates are known for {report.device.name}, only its memory"


WHY_NO_FINISH = "no length of the job is stated (--samples, --tokens or --steps)"


def why_no_cost(candidates: Iterable[Candidate], report: Report) -> str:
    """For candidates whose cost is blank although the job has a length: whose price is not stated."""
    blank = [candidate for candidate in candidates if candidate.cost_usd is None]
    names = {report.cluster.name if c.plan.num_devices > 1 and report.cluster else report.device.name for c in blank}
    return f"no price is stated for {' or '.join(sorted(names))} (--price)"


def throughput(candidate: Candidate) -> str:
    rate = candidate.samples_per_s
    return NONE if rate is None else rate_text(rate)


def rate_text(rate: float) -> str:
    """Samples per second with three digits; per hour or day where that reads better."""
    for unit, scale in (("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        if rate * scale >= 1.0:
            return f"{_three_digits(rate * scale)}/{unit}"
    return f"{_three_digits(rate * SECONDS_PER_DAY)}/day"


def _three_digits(value: float) -> str:
    return f"{float(f'{value:.3g}'):,.10g}"


def goal_label(goal: Goal) -> str:
    """The goal in one line, each part only if stated."""
    parts = [f"global batch {format_count(goal.global_batch_size)}"]
    if goal.samples is not None:
        parts.insert(0, f"{format_count(goal.samples)} samples")
    if goal.deadline_s is not None:
        parts.append(f"within {format_seconds(goal.deadline_s)}")
    if goal.budget_usd is not None:
        parts.append(f"for at most {format_usd(goal.budget_usd)}")
    return ", ".join(parts)


def shorten(name: str, width: int = 60) -> str:
    """A long module name with its middle left out: both ends carry the meaning."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[-(width - 1 - head) :]}"


def samples_in(candidate: Candidate, *, days: int) -> str:
    """What is processed in a span of time."""
    rate = candidate.samples_per_s
    return NONE if rate is None else f"{format_count(rate * days * SECONDS_PER_DAY)} samples"


def measured_step(measurement: Measurement | None) -> str:
    """The measured median, or how the run ended; a dash where nothing was run."""
    if measurement is None:
        return NONE
    if measurement.outcome is not Outcome.COMPLETED or measurement.step_time_s is None:
        return str(measurement.outcome)
    return format_seconds(measurement.step_time_s)


def measured_memory(measurement: Measurement | None) -> str:
    """Measured peak: live tensors, else what the process took."""
    if measurement is None:
        return NONE
    if measurement.peak_allocated_bytes is not None:
        return f"{format_bytes(measurement.peak_allocated_bytes)} allocated"
    if measurement.peak_process_bytes is not None:
        return f"{format_bytes(measurement.peak_process_bytes)} process"
    return NONE


def learning_rate(value: float | None) -> str:
    return NONE if value is None else f"{value:.3g}"
