"""`Report` -> ten neutral sections, in the order every format keeps. The only place that decides what a page says.

Every figure on the page is labelled measured, predicted or assumed: in its cell's row, its column, or the caption.
"""

from __future__ import annotations

from advisor.cost.estimate import Provenance
from advisor.report import breakdown, evidence, ladder, phrases, summary
from advisor.report.blocks import Block, Cell, Code, Column, Notes, Paragraph, Section, Table
from advisor.report.model import Report
from advisor.report.summary import headline
from advisor.search.plan import VerdictKind

__all__ = ["Section", "headline", "sections", "title"]

_PREDICTED, _ASSUMED = Provenance.PREDICTED, Provenance.ASSUMED


def title(report: Report) -> str:
    return f"{phrases.model_name(report)} on {report.device.title}"


def sections(report: Report) -> tuple[Section, ...]:
    """All ten for an assessment; for one exact configuration those that apply to it."""
    if report.verdict is None:
        return (
            Section("Verdict", summary.configuration(report)),
            Section("Where the memory goes", breakdown.memory(report)),
            Section("Where the step goes", breakdown.time(report)),
            Section("Run it", _run_it(report)),
            Section("Evidence", evidence.blocks(report)),
        )
    return (
        Section("Verdict", summary.verdict(report)),
        Section("One device beside distributed", summary.side_by_side(report)),
        Section("What was tried on one device", ladder.blocks(report)),
        Section("Where the memory goes", breakdown.memory(report)),
        Section("Where the step goes", breakdown.time(report)),
        Section("Scaling", (*breakdown.scaling(report), *ladder.rejections(report, distributed=True))),
        Section("Batch and learning rate", _learning_rate(report)),
        Section("What would flip the verdict", _sensitivities(report)),
        Section("Run it", _run_it(report)),
        Section("Evidence", evidence.blocks(report)),
    )


def _learning_rate(report: Report) -> tuple[Block, ...]:
    advice = report.learning_rate
    if advice is None:
        return (Paragraph("No advice: nothing is known about the learning rate (--lr states it)."),)
    plan = phrases.plan_label(report.subject.plan)
    blocks: list[Block] = [Paragraph(f"{plan[:1].upper()}{plan[1:]}: {advice.sentence}", strong=True)]
    if advice.changed:
        rows = [
            _change("Global batch", str(advice.batch_old), str(advice.batch_new)),
            _change("Learning rate", phrases.learning_rate(advice.old_lr), phrases.learning_rate(advice.new_lr)),
        ]
        columns = (Column(""), Column("Before", "right"), Column("After", "right"))
        caption = f"Before is as stated (assumed), after is predicted by rule {advice.rule or 'none'}: {advice.source}."
        blocks += [Table(columns=columns, rows=tuple(rows), caption=caption), Paragraph(f"Warm-up: {advice.warmup}")]
    if report.learning_rate_distributed is not None and report.distributed is not None:
        other = phrases.plan_label(report.distributed.plan)
        blocks.append(Paragraph(f"{other}, not needed: {report.learning_rate_distributed.sentence}"))
    if advice.companions:
        blocks.append(Notes(advice.companions, title="Companions"))
    if advice.warnings:
        blocks.append(Notes(advice.warnings, title="Mind"))
    return tuple(blocks)


def _change(name: str, before: str, after: str) -> tuple[Cell, ...]:
    return (Cell(name), Cell(before, _ASSUMED), Cell(after, _PREDICTED))


def _sensitivities(report: Report) -> tuple[Block, ...]:
    if not report.sensitivities:
        return (Paragraph("Nothing was varied."),)
    columns = (Column("What"), Column("Change"), Column("Flips"), Column("Effect", note=True))
    rows = tuple(
        (Cell(s.what), Cell(s.change, _ASSUMED), Cell("yes" if s.flips else "no"), Cell(s.effect, _PREDICTED))
        for s in report.sensitivities
    )
    return (Table(columns=columns, rows=rows, caption="Changes are assumed, effects predicted."),)


def _run_it(report: Report) -> tuple[Block, ...]:
    blocks: list[Block] = []
    infeasible = report.verdict is not None and report.verdict.kind is VerdictKind.INFEASIBLE
    if infeasible:
        blocks.append(Paragraph("Nothing meets the limits; this is the nearest miss."))
    if report.confirm_command:
        blocks.append(Code("shell", report.confirm_command, title="Confirm it on the device"))
    blocks += [Code(snippet.language, snippet.code, title=snippet.title) for snippet in report.snippets]
    if not report.snippets:
        blocks.append(Paragraph("No change to the code is needed: the recommended setup is the code as it is."))
    return tuple(blocks)
