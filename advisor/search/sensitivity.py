"""What would flip the verdict: a slower link, another price or deadline, and our own band."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from advisor.errors import AdvisorError
from advisor.hardware.profile import Sourced
from advisor.parallel.base import Strategy
from advisor.search.candidates import Pricer, finish_band
from advisor.search.plan import Candidate, SearchResult, Sensitivity, VerdictKind
from advisor.units import format_percent, format_seconds, format_usd


def sensitivities(pricer: Pricer, result: SearchResult, strategies: Mapping[str, Strategy]) -> tuple[Sensitivity, ...]:
    """Each line re-prices what it changes; lines that could not matter (no price, no deadline) are left out."""
    chosen = result.distributed if result.verdict.kind is VerdictKind.DATA_PARALLEL else result.single
    lines: list[Sensitivity] = []
    if chosen is not None:
        lines += _our_band(pricer, chosen)
        lines += _deadline(pricer, chosen)
        lines += _price(pricer, chosen)
    if result.distributed is not None:
        lines += _link(pricer, result.distributed, result, strategies)
    return tuple(lines)


def _our_band(pricer: Pricer, chosen: Candidate) -> list[Sensitivity]:
    memory = chosen.estimate.memory
    lines = [
        Sensitivity(
            what="our memory error",
            change="upper end of the band",
            effect=f"needs {format_percent(memory.high_bytes / memory.usable_bytes)} of usable memory",
            flips=memory.high_bytes > memory.usable_bytes,
        )
    ]
    if chosen.finish_s is not None and (band := finish_band(chosen)) is not None:
        _, late = band
        deadline = pricer.goal.deadline_s
        lines.append(
            Sensitivity(
                what="our time error",
                change="upper end of the 80 % band",
                effect=f"finishes in {format_seconds(late)} instead of {format_seconds(chosen.finish_s)}",
                flips=deadline is not None and chosen.finish_s <= deadline < late,
            )
        )
    return lines


def _deadline(pricer: Pricer, chosen: Candidate) -> list[Sensitivity]:
    deadline, finish = pricer.goal.deadline_s, chosen.finish_s
    if deadline is None or finish is None:
        return []
    holds = finish <= deadline
    return [
        Sensitivity(
            what="deadline",
            change=f"from {format_seconds(deadline)} to {format_seconds(finish)}",
            effect="the verdict still holds; below that it changes" if holds else "this recipe would meet it",
            flips=not holds,
        )
    ]


def _price(pricer: Pricer, chosen: Candidate) -> list[Sensitivity]:
    if chosen.cost_usd is None:
        return []
    dearer = chosen.cost_usd * 1.2
    budget = pricer.goal.budget_usd
    return [
        Sensitivity(
            what="price",
            change="+20 %",
            effect=f"costs {format_usd(dearer)} instead of {format_usd(chosen.cost_usd)}",
            flips=budget is not None and chosen.cost_usd <= budget < dearer,
        )
    ]


def _link(
    pricer: Pricer, chosen: Candidate, result: SearchResult, strategies: Mapping[str, Strategy]
) -> list[Sensitivity]:
    """All links 30 % slower: the plan itself is priced again."""
    assert pricer.cluster is not None
    slower = replace(
        pricer,
        cluster=replace(
            pricer.cluster,
            intra_node_bandwidth=_scaled(pricer.cluster.intra_node_bandwidth, 0.7),
            inter_node_bandwidth=_scaled(pricer.cluster.inter_node_bandwidth, 0.7),
        ),
        _estimates={},
    )
    try:
        again = slower.distributed(chosen.plan, strategies[chosen.plan.strategy or ""])
    except AdvisorError:
        return []
    if again.estimate.time is None or chosen.estimate.time is None:
        return []
    now, before = (format_seconds(c.estimate.time.step_s) for c in (again, chosen) if c.estimate.time)
    slows = f"still takes {before}" if now == before else f"takes {now} instead of {before}"
    flips = (
        result.verdict.kind is VerdictKind.DATA_PARALLEL and pricer.meets_goal(chosen) and not pricer.meets_goal(again)
    )
    return [
        Sensitivity(
            what="link speed",
            change="-30 %",
            effect=f"a distributed step {slows}",
            flips=flips,
        )
    ]


def _scaled(value: Sourced | None, factor: float) -> Sourced | None:
    return None if value is None else replace(value, value=value.value * factor)
