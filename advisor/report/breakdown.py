"""Sections 4 to 6: where the memory goes, where the step goes, and how both move with the device count."""

from __future__ import annotations

import re
from collections.abc import Iterable

from advisor.cost.estimate import MemoryEstimate, Peak, Provenance, TimeEstimate
from advisor.report import phrases
from advisor.report.blocks import Bar, Bars, Block, Cell, Column, Paragraph, Table
from advisor.report.model import Report
from advisor.search.plan import Candidate, ScalingPoint
from advisor.trace.category import Category
from advisor.units import format_bytes, format_bytes_per_s, format_count, format_flops_per_s, format_seconds

_PREDICTED = Provenance.PREDICTED
_NUM_MODULES = 10
_NUM_CLASSES = 12
_LONGEST_LABEL = 50  # of a bar, which at 80 columns leaves it a dozen
_WORTH_SAYING_BYTES = 2**20  # a few scalars on the host are no news
_NUMBER = re.compile(r"\d+")

_CATEGORIES = {
    Category.PARAMETER: "parameters",
    Category.BUFFER: "buffers",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER_STATE: "optimizer states",
    Category.ACTIVATION: "activations",
    Category.TEMPORARY: "temporaries",
    Category.INPUT: "batch",
    Category.WORKSPACE: "cuBLAS workspace",
    Category.COMMUNICATION: "communication buckets",
}


def memory(report: Report) -> tuple[Block, ...]:
    subject, estimate = report.subject, report.subject.estimate.memory
    compared = () if subject.plan == report.baseline.plan else (("as it is", report.baseline.estimate.memory),)
    columns = ((_name(report, subject), estimate), *compared)
    blocks: list[Block] = [
        _memory_bars(columns),
        Paragraph(
            f"Predicted band {phrases.memory_band(estimate)} against "
            f"{format_bytes(estimate.usable_bytes)} usable (assumed): {phrases.fit(estimate)}."
        ),
        _peaks(estimate),
    ]
    if estimate.by_module:
        blocks.append(_modules(estimate))
    if estimate.host_bytes >= _WORTH_SAYING_BYTES:
        blocks.append(Paragraph(f"On the host: {format_bytes(estimate.host_bytes)} (predicted)."))
    return tuple(blocks)


def _name(report: Report, candidate: Candidate) -> str:
    if report.verdict is None:
        return "as asked"
    if candidate.plan == report.baseline.plan:
        return "as it is"
    return "one device" if candidate.plan.num_devices == 1 else "each rank"


def _memory_bars(columns: tuple[tuple[str, MemoryEstimate], ...]) -> Bars:
    parts = [_memory_parts(estimate) for _, estimate in columns]
    labels = list(dict.fromkeys(label for part in parts for label in part))
    first = columns[0][1]
    whole = max(1, first.required_bytes, first.usable_bytes)
    bars = [
        Bar(label, parts[0].get(label, 0) / whole, tuple(_bytes(part.get(label)) for part in parts)) for label in labels
    ]
    required = tuple(format_bytes(estimate.required_bytes) for _, estimate in columns)
    usable = tuple(format_bytes(estimate.usable_bytes) for _, estimate in columns)
    bars.append(Bar("required", first.required_bytes / whole, required))
    bars.append(Bar("usable (assumed)", first.usable_bytes / whole, usable))
    return Bars(
        title="Required memory at the peak, predicted",
        columns=tuple(name for name, _ in columns),
        bars=tuple(bars),
        provenance=_PREDICTED,
    )


def _memory_parts(estimate: MemoryEstimate) -> dict[str, int]:
    """The categories at the peak and what comes on top; they add up to `required_bytes`."""
    parts = {_CATEGORIES[category]: size for category, size in estimate.peak.by_category}
    held = estimate.reserved_peak_bytes - estimate.releasable_bytes
    on_top = {
        "allocator: rounding, holes": held - estimate.allocated_peak_bytes,
        "device context": estimate.context_bytes,
        "library workspace": estimate.workspace_bytes,
        "communication library": estimate.communication_bytes,
    }
    return {label: size for label, size in (parts | on_top).items() if size}


def _bytes(size: int | None) -> str:
    return phrases.NONE if size is None else format_bytes(size)


def _peaks(estimate: MemoryEstimate) -> Table:
    peaks = (("peak", estimate.peak), ("next peak", estimate.next_peak), ("first step", estimate.first_step_peak))
    columns = (
        Column("When"),
        Column("Allocated", "right"),
        Column("Phase"),
        Column("Operator"),
        Column("Module", note=True),
    )
    rows = tuple(_peak(name, peak) for name, peak in peaks if peak is not None)
    return Table(columns=columns, rows=rows, caption="Live tensors, predicted, before allocator and context.")


def _peak(name: str, peak: Peak) -> tuple[Cell, ...]:
    phase = f"{peak.phase}{', first step' if peak.first_step and name != 'first step' else ''}"
    return (
        Cell(name),
        Cell(format_bytes(peak.allocated_bytes), _PREDICTED),
        Cell(phase),
        Cell(peak.operator.removesuffix(".default")),
        Cell(phrases.shorten(peak.module) or "the model itself"),
    )


def _modules(estimate: MemoryEstimate) -> Bars:
    """The largest holders; modules that differ in their number alone and hold the same are one line."""
    alike: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for name, size in estimate.by_module:
        alike.setdefault((_NUMBER.sub("*", name), format_bytes(size)), []).append((name, size))
    lines = [_alike(pattern, each, modules) for (pattern, each), modules in alike.items()]
    lines.sort(key=lambda line: -line[1])
    shown, rest = lines[:_NUM_MODULES], lines[_NUM_MODULES:]
    if rest:
        shown.append(("all others", sum(size for _, size in rest)))
    largest = max(1, *(size for _, size in shown))
    return Bars(
        title="Activations held at the peak, by module, predicted",
        columns=("held",),
        bars=tuple(Bar(name, size / largest, (format_bytes(size),)) for name, size in shown),
        provenance=_PREDICTED,
    )


def _alike(pattern: str, each: str, modules: list[tuple[str, int]]) -> tuple[str, int]:
    total = sum(size for _, size in modules)
    if len(modules) == 1:
        return phrases.shorten(modules[0][0], _LONGEST_LABEL) or "the model itself", total
    count = f" ({len(modules)} x {each})"
    return f"{phrases.shorten(pattern, _LONGEST_LABEL - len(count))}{count}", total


def time(report: Report) -> tuple[Block, ...]:
    estimate = report.subject.estimate.time
    if estimate is None:
        return (Paragraph(f"Blank: {phrases.why_no_rates(report)}."),)
    blocks: list[Block] = [_time_bars(estimate), Paragraph(_utilisation(estimate))]
    if estimate.by_class:
        blocks.append(_classes(estimate))
    if estimate.unpriced:
        blocks.append(_unpriced(estimate))
    return tuple(blocks)


def _time_bars(estimate: TimeEstimate) -> Bars:
    parts = (
        ("compute-bound kernels", estimate.compute_s),
        ("memory-bound kernels", estimate.memory_bound_s),
        ("launch-bound: waiting for the host", estimate.launch_bound_s),
        ("exposed communication", estimate.exposed_communication_s),
        ("pipeline bubble", estimate.bubble_s),
        ("offload", estimate.offload_s),
    )
    whole = estimate.step_s
    bars = [
        Bar(
            label,
            phrases.ratio(part, whole) or 0.0,
            (format_seconds(part), phrases.percent(phrases.ratio(part, whole))),
        )
        for label, part in parts
        if part
    ]
    bars.append(Bar("step", 1.0, (format_seconds(whole), "100 %")))
    return Bars(
        title="One optimizer step, predicted", columns=("time", "share"), bars=tuple(bars), provenance=_PREDICTED
    )


def _utilisation(estimate: TimeEstimate) -> str:
    band = f"80 % band {phrases.step_band(estimate)}, predicted."
    if estimate.mfu is None:
        return f"{band} MFU is blank: no dense peak is stated for the precision used."
    return (
        f"{band} MFU {phrases.percent(estimate.mfu)} (model FLOPs), HFU {phrases.percent(estimate.hfu)} "
        "(with recomputation), both predicted, of the dense peak."
    )


def _classes(estimate: TimeEstimate) -> Table:
    columns = (
        Column("Operators"),
        Column("Time", "right"),
        Column("Share", "right"),
        Column("Kernels", "right"),
        Column("Arithmetic", "right"),
        Column("Traffic", "right"),
        Column("Bound by"),
    )
    rows = []
    for line in sorted(estimate.by_class, key=lambda line: (-line.seconds, line.op_class))[:_NUM_CLASSES]:
        flops, traffic = phrases.ratio(line.flops, line.seconds), phrases.ratio(line.num_bytes, line.seconds)
        figures = (
            format_seconds(line.seconds),
            phrases.percent(phrases.ratio(line.seconds, estimate.step_s)),
            format_count(line.num_kernels),
            format_flops_per_s(flops) if flops else phrases.NONE,
            format_bytes_per_s(traffic) if traffic else phrases.NONE,
        )
        rows.append((Cell(line.op_class), *(Cell(text, _PREDICTED) for text in figures), Cell(line.bound)))
    return Table(columns=columns, rows=tuple(rows), caption="All figures predicted; shares are of the step.")


def _unpriced(estimate: TimeEstimate) -> Table:
    columns = (
        Column("Not priced"),
        Column("Calls", "right"),
        Column("At most", "right"),
        Column("Share", "right"),
        Column("First met in"),
    )
    rows = tuple(
        (
            Cell(operator.name),
            Cell(format_count(operator.count), _PREDICTED),
            Cell(format_seconds(operator.bound_seconds), _PREDICTED),
            Cell(phrases.percent(phrases.ratio(operator.bound_seconds, estimate.step_s)), _PREDICTED),
            Cell(phrases.shorten(operator.module) or "the model itself"),
        )
        for operator in estimate.unpriced
    )
    return Table(
        columns=columns,
        rows=rows,
        caption="Operators without a rule: upper bounds from the bytes they move, predicted. Above 2 % of the step the "
        "verdict is undetermined.",
    )


def scaling(report: Report) -> tuple[Block, ...]:
    if report.cluster is None:
        return (Paragraph("Not looked at: no cluster was named (--cluster)."),)
    if not report.scaling:
        return (Paragraph("No device count was looked at."),)
    columns = (
        Column("Devices", "right"),
        Column("Plan"),
        Column("Memory", "right"),
        Column("Step", "right"),
        Column("Samples", "right"),
        Column("Eff.", "right"),
        *_if_goal(report, Column("Finishes", "right"), Column("Cost", "right")),
    )
    shown = [point.candidate for point in report.scaling if point.candidate is not None]
    has_blank = any(candidate.finish_s is not None and candidate.cost_usd is None for candidate in shown)
    blank = f" Cost is blank: {phrases.why_no_cost(shown, report)}." if has_blank else ""
    table = Table(
        columns=columns,
        rows=tuple(_scaling_row(point, report) for point in report.scaling),
        caption="All figures predicted, at a held global batch. Plan is strategy, micro-batch x accumulation; memory "
        f"is required per rank; efficiency is strong scaling against the smallest count that fits.{blank}",
    )
    return (table,)


def _if_goal(report: Report, *columns: Column) -> Iterable[Column]:
    return columns if report.goal.samples is not None else ()


def _scaling_row(point: ScalingPoint, report: Report) -> tuple[Cell, ...]:
    count = Cell(str(point.num_devices))
    candidate = point.candidate
    num_figures = 4 + 2 * (report.goal.samples is not None)
    if candidate is None:
        return (count, Cell("none"), *(Cell(phrases.NONE),) * num_figures)
    figures = [
        format_bytes(candidate.estimate.memory.required_bytes),
        phrases.step_time(candidate.estimate.time),
        phrases.throughput(candidate),
        phrases.percent(point.efficiency),
    ]
    if report.goal.samples is not None:
        figures += [phrases.finish(candidate), phrases.cost(candidate)]
    return (count, Cell(_short_plan(candidate)), *(Cell(text, _PREDICTED) for text in figures))


def _short_plan(candidate: Candidate) -> str:
    plan = candidate.plan
    batch = f"{plan.recipe.micro_batch_size} x {plan.recipe.num_microbatches}"
    return batch if plan.strategy is None else f"{phrases.strategy_label(plan.strategy)}, {batch}"
