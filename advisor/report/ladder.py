"""Section 3: the options tried on one device, and plans not taken with the reason."""

from __future__ import annotations

from advisor.cost.estimate import Provenance
from advisor.options.base import Risk
from advisor.report import phrases
from advisor.report.blocks import Block, Cell, Column, Notes, Paragraph, Table
from advisor.report.model import Report
from advisor.search.plan import Candidate, Rejection, Rung
from advisor.units import format_bytes

_PREDICTED = Provenance.PREDICTED
_LABELS_PER_REASON = 4


def blocks(report: Report) -> tuple[Block, ...]:
    has_goal = report.goal.samples is not None
    columns = (
        Column("Option"),
        Column("Memory", "right"),
        Column("Step", "right"),
        Column("Finishes" if has_goal else "Samples", "right"),
        Column("Risk"),
        Column("Taken"),
        Column("Why", note=True),
    )
    rows = tuple(_rung(rung, rung.candidate, report) for rung in report.ladder if rung.candidate is not None)
    usable = format_bytes(report.baseline.estimate.memory.usable_bytes)
    found: list[Block] = [
        Table(
            columns=columns,
            rows=rows,
            caption=f"Mildest first. Memory, step and {'time to finish' if has_goal else 'throughput'} are predicted; "
            f"usable memory is {usable} (assumed).",
        )
    ]
    return (*found, Paragraph(_how_far(report)), *_not_tried(report), *rejections(report, distributed=False))


def _how_far(report: Report) -> str:
    """Largest micro-batch and longest sequence: extrapolated, or why not."""
    if report.single is None:
        return "No largest micro-batch or longest sequence is given: nothing fits on one device."
    if report.max_micro_batch_size is None:
        return "No largest micro-batch is given: required memory did not grow between two sizes that could be traced."
    basis = "predicted; required memory extended in a straight line through two traced micro-batches"
    limits = f"The largest micro-batch that fits is about {_about(report.max_micro_batch_size)} ({basis})."
    if report.max_sequence_length is not None:
        length = _about(report.max_sequence_length)
        return f"{limits} By memory alone, one sequence may have about {length} tokens (the same line, in tokens)."
    if report.tokens_per_sample is not None:
        return f"{limits} No longest sequence is given: attention keeps scores, which grow with its square."
    return limits


def _about(count: int) -> str:
    """Three digits: more would look exact."""
    return f"{float(f'{count:.3g}'):,.0f}"


def _rung(rung: Rung, candidate: Candidate, report: Report) -> tuple[Cell, ...]:
    figures = (
        format_bytes(candidate.estimate.memory.required_bytes),
        phrases.step_time(candidate.estimate.time),
        phrases.finish(candidate) if report.goal.samples is not None else phrases.throughput(candidate),
    )
    taken = Cell("yes" if rung.taken else "")
    return (
        Cell(rung.label),
        *(Cell(text, _PREDICTED) for text in figures),
        Cell(str(rung.risk)),
        taken,
        Cell(rung.why),
    )


def _not_tried(report: Report) -> tuple[Block, ...]:
    """Options without figures: not needed, or without meaning here."""
    reasons: dict[str, list[str]] = {}
    for rung in report.ladder:
        if rung.candidate is None:
            risk = "" if rung.risk is Risk.NOTHING else f" ({rung.risk})"
            reasons.setdefault(rung.why, []).append(f"{rung.label}{risk}")
    items = tuple(f"{'; '.join(labels)} — {why}" for why, labels in reasons.items())
    return (Notes(items, title="Not tried"),) if items else ()


def rejections(report: Report, *, distributed: bool) -> tuple[Block, ...]:
    """Plans not taken, those with the same reason together; device counts at which there is no plan among them."""
    reasons: dict[str, list[str]] = {}
    for point in report.scaling if distributed else ():
        if point.candidate is None:
            reasons.setdefault(point.reason, []).append(phrases.devices(point.num_devices))
    for rejection in report.rejections:
        if _is_distributed(rejection, report) is distributed:
            reasons.setdefault(rejection.reason, []).append(rejection.label)
    if not reasons:
        return ()
    return (Notes(tuple(_rejection(reason, labels) for reason, labels in reasons.items()), title="Not taken"),)


def _is_distributed(rejection: Rejection, report: Report) -> bool:
    return report.cluster is not None if rejection.plan is None else rejection.plan.num_devices > 1


def _rejection(reason: str, labels: list[str]) -> str:
    more = len(labels) - _LABELS_PER_REASON
    shown = "; ".join(labels[:_LABELS_PER_REASON]) + (f" and {more} more" if more > 0 else "")
    return f"{shown} — {reason}"
