"""Sections 1 and 2: the verdict and what was assessed; one device beside distributed."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.cost.estimate import Provenance
from advisor.options.base import Risk
from advisor.options.packing import samples_per_row
from advisor.report import evidence, phrases
from advisor.report.blocks import Block, Cell, Column, Paragraph, Table
from advisor.report.model import Report
from advisor.search.plan import PAYING_DOUBLING, Candidate
from advisor.units import format_count, format_percent, format_seconds, format_usd

_PREDICTED, _MEASURED = Provenance.PREDICTED, Provenance.MEASURED


def headline(report: Report) -> str:
    """The verdict's kind, as gates and titles print it: "single-device", "data-parallel (undetermined)"."""
    if report.verdict is None:
        return phrases.fit(report.baseline.estimate.memory)
    return f"{report.verdict.kind}{' (undetermined)' if report.verdict.undetermined else ''}"


def verdict(report: Report) -> tuple[Block, ...]:
    verdict = report.verdict
    assert verdict is not None
    blocks: list[Block] = [Paragraph(f"{headline(report)}: {verdict.sentence}", strong=True)]
    if verdict.margin:
        blocks.append(Paragraph(f"Margin (predicted): {verdict.margin}"))
    blocks.append(Paragraph(f"Confidence: {_confidence(report)}"))
    if verdict.decide_by:
        blocks.append(Paragraph(f"What would decide it: {verdict.decide_by}"))
    if verdict.would_have_to_give:
        blocks.append(Paragraph(f"What would have to give: {verdict.would_have_to_give}"))
    return (*blocks, _assessed(report))


def _confidence(report: Report) -> str:
    verdict, estimate = report.verdict, report.subject.estimate
    bands = [f"required memory {phrases.memory_band(estimate.memory)}"]
    if estimate.time is not None:
        bands.append(f"step time {phrases.step_band(estimate.time)}")
    undetermined = verdict is not None and verdict.undetermined
    state = "undetermined; predicted bands are" if undetermined else "no limit lies inside the predicted bands:"
    measured = "; the step was also run here, see Evidence" if report.subject.measurement else ""
    return f"{state} {', '.join(bands)} (80 %){measured}."


def configuration(report: Report) -> tuple[Block, ...]:
    memory, time = report.baseline.estimate.memory, report.baseline.estimate.time
    plan = phrases.plan_label(report.baseline.plan)
    sentence = f"{phrases.fit(memory)}: {plan} needs {phrases.memory(memory)} usable, predicted"
    speed = "Step time is blank: " + phrases.why_no_rates(report)
    if time is not None:
        speed = f"One step takes {format_seconds(time.step_s)} (80 % band {phrases.step_band(time)}), predicted."
    blocks: list[Block] = [Paragraph(f"{sentence}.", strong=True), Paragraph(speed)]
    if report.baseline.measurement is not None:
        blocks.append(evidence.measured_beside_predicted(report))
    return (*blocks, _assessed(report))


def _model(report: Report) -> str:
    name = phrases.model_name(report)
    if report.num_parameters is None:
        return name
    count = f"{format_count(report.num_parameters)} parameters"
    if report.num_trainable_parameters not in (None, report.num_parameters):
        count += f", {format_count(report.num_trainable_parameters)} of them trained"
    return f"{name}, {count}"


def _assessed(report: Report) -> Table:
    """What was built, and on what: the first lines a reader checks."""
    description = report.description
    flags = {guess.what: guess.flag for guess in description.guesses}

    def row(name: str, text: str) -> tuple[Cell, ...]:
        key = name.lower()
        return (Cell(name), Cell(f"{text} (guessed; override with {flags[key]})" if key in flags else text))

    rows = [
        row("Model", _model(report)),
        row("Batch", description.batch),
        row("Loss", description.loss),
        row("Optimizer", description.optimizer),
        row("Device", f"{report.device.title} ({report.device.name})"),
    ]
    if report.cluster is not None:
        rows.append(row("Cluster", f"{report.cluster.title} ({report.cluster.name})"))
    if report.verdict is None:
        rows.append(
            row(
                "Configuration",
                f"{phrases.recipe_label(report.baseline.plan.recipe)}, batch {phrases.batch_label(report.baseline)}",
            )
        )
    else:
        rows.append(row("Goal", phrases.goal_label(report.goal)))
    return Table(
        columns=(Column("Assessed"), Column("")), rows=tuple(rows), caption="Goal and batch are as stated (assumed)."
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    title: str
    candidate: Candidate


def _choices(report: Report) -> tuple[_Choice, ...]:
    """The columns: as it is, the best on one device (or the nearest miss), the best distributed plan."""
    choices = [_Choice("As it is", report.baseline)]
    one = report.single or report.nearest_single
    if one is not None and one.plan != report.baseline.plan:
        choices.append(_Choice("One device" if report.single else "One device, nearest miss", one))
    elif report.single is not None:
        choices = [_Choice("One device, as it is", report.single)]
    if report.distributed is not None:
        choices.append(_Choice("Distributed", report.distributed))
    return tuple(choices)


def side_by_side(report: Report) -> tuple[Block, ...]:
    choices = _choices(report)
    candidates = [choice.candidate for choice in choices]
    times = [c.estimate.time for c in candidates]
    rows = [
        _row("Plan", [phrases.plan_label(c.plan) for c in candidates]),
        _row("Options", [phrases.recipe_label(c.plan.recipe) for c in candidates]),
        *([_row("Model", [c.variant or "yours" for c in candidates])] if any(c.variant for c in candidates) else []),
        _row("Micro-batch", [phrases.batch_label(c) for c in candidates]),
        _row("Optimisation", [_optimisation(c, report) for c in candidates]),
        _heading("Predicted", candidates),
        _row("Memory", [phrases.memory(c.estimate.memory) for c in candidates], _PREDICTED),
        _row("Fits", [phrases.fit(c.estimate.memory) for c in candidates]),
        _row("Step", [phrases.step_time(time) for time in times], _PREDICTED),
        *(_speed_rows(candidates, report) if any(times) else ()),
        *_measured_rows(candidates),
    ]
    columns = (Column(""), *(Column(choice.title) for choice in choices))
    table = Table(columns=columns, rows=tuple(rows), caption=_side_by_side_caption(candidates, report))
    return (table, Paragraph(_where_it_pays(report)))


def _row(name: str, texts: list[str], provenance: Provenance | None = None) -> tuple[Cell, ...]:
    return (Cell(name), *(Cell(text, None if text == phrases.NONE else provenance) for text in texts))


def _heading(name: str, candidates: list[Candidate]) -> tuple[Cell, ...]:
    """A row that labels those below it."""
    return (Cell(name), *(Cell(""),) * len(candidates))


def _speed_rows(candidates: list[Candidate], report: Report) -> list[tuple[Cell, ...]]:
    times = [candidate.estimate.time for candidate in candidates]
    return [
        _row("80 % band", [phrases.step_band(time) for time in times], _PREDICTED),
        _row("Samples", [phrases.throughput(c) for c in candidates], _PREDICTED),
        *_finish_rows(candidates, report),
        *_efficiency(candidates),
        _row("MFU", [phrases.percent(time.mfu if time else None) for time in times], _PREDICTED),
    ]


def _efficiency(candidates: list[Candidate]) -> list[tuple[Cell, ...]]:
    """Only where there is something to compare with."""
    efficiencies = [candidate.efficiency for candidate in candidates]
    if all(efficiency is None for efficiency in efficiencies):
        return []
    return [_row("Efficiency", [phrases.percent(efficiency) for efficiency in efficiencies], _PREDICTED)]


def _finish_rows(candidates: list[Candidate], report: Report) -> list[tuple[Cell, ...]]:
    """Time and money to the goal; without a goal what is done in a day, a week and a month."""
    if report.goal.samples is not None:
        return [
            _row("Finish", [phrases.finish(c) for c in candidates], _PREDICTED),
            _row("Cost", [phrases.cost(c) for c in candidates], _PREDICTED),
        ]
    spans = (("In a day", 1), ("In a week", 7), ("In 30 days", 30))
    return [_row(name, [phrases.samples_in(c, days=days) for c in candidates], _PREDICTED) for name, days in spans]


def _measured_rows(candidates: list[Candidate]) -> list[tuple[Cell, ...]]:
    measurements = [candidate.measurement for candidate in candidates]
    if not any(measurements):
        return []
    return [
        _heading("Measured", candidates),
        _row("Step", [phrases.measured_step(m) for m in measurements], _MEASURED),
        _row("Memory", [phrases.measured_memory(m) for m in measurements], _MEASURED),
    ]


def _optimisation(candidate: Candidate, report: Report) -> str:
    """What changes for the training itself, in words."""
    plan, changes = candidate.plan, []
    batch = plan.recipe.micro_batch_size * plan.recipe.num_microbatches * plan.mesh.data_parallel_size
    if batch != report.goal.global_batch_size:
        changes.append(f"global batch {report.goal.global_batch_size} -> {batch}")
    if candidate.variant:
        changes.append("smaller model")
    risks = {(rung.option, rung.value): rung.risk for rung in report.ladder}
    for risk, words in ((Risk.OPTIMISATION, "optimisation"), (Risk.MODEL, "model"), (Risk.NUMERICS, "numerics")):
        names = [name for name, value in plan.recipe.choices if risks.get((name, value)) is risk]
        if names:
            changes.append(f"{words}: {', '.join(names)}")
    if (packed := samples_per_row(plan.recipe.choice("packing"))) > 1:
        changes.append(f"{packed:.3g} samples a row: the same batch in {format_percent(1 / packed)} of the rows")
    return "; ".join(changes) or "unchanged"


def _side_by_side_caption(candidates: list[Candidate], report: Report) -> str:
    blanks = []
    if all(candidate.estimate.time is None for candidate in candidates):
        blanks.append(f"step time: {phrases.why_no_rates(report)}")
    elif report.goal.samples is None:
        blanks.append(f"time to finish and cost: {phrases.WHY_NO_FINISH}")
    elif any(candidate.cost_usd is None for candidate in candidates):
        blanks.append(f"cost: {phrases.why_no_cost(candidates, report)}")
    if any(c.estimate.time and c.estimate.time.mfu is None for c in candidates):
        blanks.append("MFU: no dense peak stated for the precision used")
    parts = ["Memory is required of usable."]
    if any(candidate.efficiency is not None for candidate in candidates):
        parts.append("Efficiency is per device against the best on one device.")
    parts += _price(report)
    if blanks:
        parts.append(f"Blank because: {'; '.join(blanks)}.")
    return " ".join(parts)


def _price(report: Report) -> list[str]:
    """Where the prices are from, a sentence each."""
    stated = next((setting for setting in report.settings if setting.name == "price"), None)
    if stated is not None:
        return [f"Price {stated.value} (assumed, {stated.origin})."]
    node = report.cluster.price_usd_per_hour if report.cluster else None
    prices = (("device-hour", report.device.price_usd_per_hour), ("node-hour", node))
    return [f"Price {format_usd(price.value)} per {unit} (assumed: {price.source})." for unit, price in prices if price]


def _where_it_pays(report: Report) -> str:
    if report.cluster is None:
        return "No cluster was named (--cluster), so only one device was considered."
    if report.distributed is None:
        return f"No distributed plan within the limits was found on {report.cluster.name}: see Scaling."
    if report.pays_from_devices is None:
        return "Distribution does not pay at any device count that was looked at (predicted)."
    starts = f"Distribution starts to pay at {phrases.devices(report.pays_from_devices)}"
    if not report.pays_until_devices:
        return f"{starts} (predicted)."
    return (
        f"{starts} and stops paying beyond {report.pays_until_devices} (predicted): a doubling then shortens the step "
        f"by less than {PAYING_DOUBLING:g} x, the least that we call paying."
    )
