"""Data parallelism over a cluster: for each device count the simplest strategy that fits, and how far counting up pays.

Each rank runs a recipe from the single-device search; the global batch is held, so ranks share out its samples. Recipes
are tried mildest first (what one device had to give up for memory, sharding may give back).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import log2

from advisor.cost.estimate import FitVerdict
from advisor.cost.scaling import strong_efficiency
from advisor.errors import AdvisorError
from advisor.hardware.mesh import Mesh
from advisor.options.base import Facts, Option, Recipe, Risk
from advisor.parallel.base import Strategy
from advisor.search.candidates import Pricer, divisors, finish_band, fits, step_s
from advisor.search.device import DeviceSearch
from advisor.search.plan import PAYING_DOUBLING, Candidate, Plan, Rejection, ScalingPoint
from advisor.trace.records import STATES, Category, StepTrace
from advisor.units import format_bytes

# Options that serve a rank as they serve one device; the others only make room, which sharding makes too.
SHARED = frozenset({"precision", "memory_format", "attention", "loss", "optimizer", "packing"})

# Costs that differ by less are one cost: the error of the specification's own choice among plans (section 5.4).
SAME_COST = 0.05

# Bytes beside the shards may fall by this much when a strategy rewrites the step: below it nothing is worth pricing.
# Our choice.
TRANSIENT_MARGIN = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSearch:
    """What the search over the data axis found."""

    best: Candidate | None
    scaling: tuple[ScalingPoint, ...]
    rejections: tuple[Rejection, ...]
    pays_from_devices: int | None
    pays_until_devices: int | None


def search_parallel(
    pricer: Pricer,
    facts: Facts,
    options: Mapping[str, Option],
    strategies: Mapping[str, Strategy],
    single: DeviceSearch,
    *,
    max_devices: int,
) -> ParallelSearch:
    """The best data-parallel plan with at most `max_devices`, and the scaling table that led to it."""
    search = _Search(pricer, strategies, _rank_choices(facts, options, single), single.baseline.plan.recipe)
    reference = single.best
    points: list[ScalingPoint] = []
    for num_devices in device_counts(max_devices):
        found = search.at(num_devices)
        if isinstance(found, str):
            points.append(ScalingPoint(num_devices=num_devices, candidate=None, efficiency=None, reason=found))
            continue
        reference = reference or found
        efficiency = _efficiency(found, reference)
        found = replace(found, efficiency=efficiency)
        points.append(ScalingPoint(num_devices=num_devices, candidate=found, efficiency=efficiency))
    found_candidates = [point.candidate for point in points if point.candidate is not None]
    until = _pays_until(found_candidates, single.best)
    return ParallelSearch(
        best=_choose(pricer, found_candidates, until),
        scaling=tuple(points),
        rejections=tuple(search.rejections.values()),
        pays_from_devices=_pays_from(found_candidates, single.best),
        pays_until_devices=until,
    )


def device_counts(max_devices: int) -> list[int]:
    """2, 4, 8, ... and the largest count allowed."""
    counts = [2**power for power in range(1, max_devices.bit_length()) if 2**power <= max_devices]
    if max_devices > 1 and max_devices not in counts:
        counts.append(max_devices)
    return counts


def meshes(strategy: Strategy, num_devices: int, devices_per_node: int) -> Iterator[tuple[Mesh, bool]]:
    """Meshes of a strategy at one count, each with whether to reshard after forward."""
    if strategy.axes == ("dp_replicate",):
        yield Mesh(dp_replicate=num_devices), True
    elif strategy.axes == ("dp_shard",):
        yield Mesh(dp_shard=num_devices), True
        if strategy.reshards:
            yield Mesh(dp_shard=num_devices), False
    elif num_devices > devices_per_node and num_devices % devices_per_node == 0:
        yield Mesh(dp_replicate=num_devices // devices_per_node, dp_shard=devices_per_node), True


def _rank_choices(facts: Facts, options: Mapping[str, Option], single: DeviceSearch) -> list[Recipe]:
    """Recipes of a rank, mildest first: what cost one device only numerics, then with recomputation, then all."""
    taken = (single.best or single.nearest).plan.recipe
    kept = dict(single.baseline.plan.recipe.choices)
    kept |= {
        rung.option: rung.value
        for rung in single.ladder
        if rung.taken and rung.option in SHARED and rung.risk in (Risk.NOTHING, Risk.NUMERICS)
    }
    mild = Recipe(micro_batch_size=1, choices=tuple(sorted(kept.items())))
    recipes = [mild]
    if "checkpointing" in options:
        legal = options["checkpointing"].values(facts)
        recipes += [mild.choosing("checkpointing", value) for value in ("selective", "all") if value in legal[1:]]
    if taken.choices not in [recipe.choices for recipe in recipes]:
        recipes.append(replace(taken, micro_batch_size=1, num_microbatches=1))
    return recipes


class _Search:
    def __init__(
        self, pricer: Pricer, strategies: Mapping[str, Strategy], recipes: list[Recipe], baseline: Recipe
    ) -> None:
        assert pricer.cluster is not None
        self.pricer, self.recipes = pricer, recipes
        self.as_it_is, self.given = pricer.trace(baseline), set(baseline.choices)
        self.strategies = sorted(strategies.values(), key=lambda s: s.simplicity)
        self.per_node = pricer.cluster.devices_per_node
        self.usable = pricer.device.usable_memory_bytes or 0
        self.rejections: dict[str, Rejection] = {}  # by family; the largest count stands for the smaller ones
        self._transient: dict[Recipe, float] = {}

    def at(self, num_devices: int) -> Candidate | str:
        """Best candidate at this count, or the reason there is none."""
        share, rest = divmod(self.pricer.goal.global_batch_size, num_devices)
        if rest:
            return f"the held global batch of {self.pricer.goal.global_batch_size} does not divide by {num_devices}"
        reason = "no strategy fits"
        for recipe in self.recipes:
            fitting: list[Candidate] = []
            for strategy in self.strategies:
                if fitting and Category.PARAMETER not in strategy.sharded:
                    continue  # a simpler one fits
                for mesh, reshard in meshes(strategy, num_devices, self.per_node):
                    found = self._evaluate(recipe, share, strategy, mesh, reshard=reshard)
                    if isinstance(found, str):
                        reason = found
                    else:
                        fitting.append(found)
                if fitting and not strategy.sharded:
                    break  # nothing communicates less
            if fitting:
                return min(fitting, key=step_s)
        return reason

    def _evaluate(
        self, recipe: Recipe, share: int, strategy: Strategy, mesh: Mesh, *, reshard: bool
    ) -> Candidate | str:
        label = strategy.title + ("" if reshard else ", kept gathered")
        label += "".join(f", {value}" for name, value in recipe.choices if name == "checkpointing")
        try:
            return self._fill(recipe, share, strategy, mesh, reshard=reshard, label=label)
        except AdvisorError as error:
            return self._reject(label, mesh, f"not possible here: {error.message.splitlines()[-1]}")

    def _fill(
        self, recipe: Recipe, share: int, strategy: Strategy, mesh: Mesh, *, reshard: bool, label: str
    ) -> Candidate | str:
        """The largest micro-batch that should fit beside the shards, checked by pricing it."""
        one = replace(recipe, micro_batch_size=1, num_microbatches=min(share, 2))
        # States are the same whatever a recipe recomputes or casts: the step as it is tells them without a trace more.
        trace = self.as_it_is if _keeps_states(set(recipe.choices) - self.given) else self.pricer.trace(one)
        if (reason := strategy.illegal(trace, mesh)) is not None:
            return self._reject(label, mesh, reason)
        states = _state_bytes(trace, mesh, strategy)
        if states > self.usable:
            what = f"parameters, gradients and optimizer states alone take {format_bytes(states)} a rank"
            return self._reject(label, mesh, what)
        room = self.usable - states
        beside = self._beside_states(one, 1)
        if TRANSIENT_MARGIN * beside > room:
            what = f"about {format_bytes(states + beside)} a rank with one sample at a time"
            return self._reject(label, mesh, what)
        for size in self._sizes(one, share, room):
            whole = replace(recipe, micro_batch_size=size, num_microbatches=share // size)
            plan = Plan(recipe=whole, mesh=mesh, strategy=strategy.name, reshard_after_forward=reshard)
            self.pricer.progress(f"pricing {label}, micro-batch {size}", None)
            candidate = self.pricer.distributed_if_it_fits(plan, strategy)
            if fits(candidate):
                return candidate
        memory = candidate.estimate.memory
        return self._reject(
            label,
            mesh,
            f"needs {format_bytes(memory.required_bytes)} of {format_bytes(memory.usable_bytes)} a rank "
            f"with {candidate.plan.recipe.micro_batch_size} sample(s) at a time",
            candidate,
        )

    def _sizes(self, one: Recipe, share: int, room: float) -> list[int]:
        """At most two divisors of the share to try, largest first, and one sample as the last resort."""
        if share == 1:
            return [1]
        first, second = self._beside_states(one, 1), self._beside_states(one, 2)
        slope = max(second - first, 1.0)
        fixed = first - slope
        below = [d for d in divisors(share) if fixed + slope * d <= room]
        return [*sorted(below[-2:], reverse=True), *([] if 1 in below[-2:] else [1])] if below else [1]

    def _beside_states(self, one: Recipe, size: int) -> float:
        """Bytes that are not state, with `size` samples at a time."""
        recipe = replace(one, micro_batch_size=size, num_microbatches=2)
        if recipe not in self._transient:
            self._transient[recipe] = _transient_bytes(self.pricer, recipe)
        return self._transient[recipe]

    def _reject(self, label: str, mesh: Mesh, reason: str, candidate: Candidate | None = None) -> str:
        estimate = None if candidate is None else candidate.estimate
        plan = None if candidate is None else candidate.plan
        where = f"on {mesh.world_size} devices: {reason}"
        self.rejections[label] = Rejection(plan=plan, label=label, reason=where, estimate=estimate)
        return reason


def _keeps_states(choices: set[tuple[str, str]]) -> bool:
    """Whether parameters, gradients and optimizer states stay what they are under these choices."""
    return all(
        value in ("tf32", "amp-bf16", "amp-fp16") if name == "precision" else name in {*SHARED, "checkpointing"}
        for name, value in choices
    )


def _state_bytes(trace: StepTrace, mesh: Mesh, strategy: Strategy) -> float:
    """Lower bound of what a rank keeps (specs/parallelism section 1.2); gradients exist once per step."""
    whole = {
        Category.PARAMETER: _categories(trace, Category.PARAMETER),
        Category.GRADIENT: sum(p.nbytes for p in trace.parameters if p.requires_grad),
        Category.OPTIMIZER_STATE: _categories(trace, Category.OPTIMIZER_STATE),
    }
    kept = sum(size for category, size in whole.items() if category not in strategy.sharded)
    return kept + sum(size for category, size in whole.items() if category in strategy.sharded) / mesh.dp_shard


def _categories(trace: StepTrace, category: Category) -> int:
    return sum(s.nbytes for s in trace.storages if s.category is category and not s.on_host)


def _transient_bytes(pricer: Pricer, recipe: Recipe) -> float:
    candidate = pricer.single(recipe, f"micro-batch {recipe.micro_batch_size}")
    memory = candidate.estimate.memory
    states = sum(size for category, size in memory.peak.by_category if category in STATES)
    return memory.required_bytes - states


def _efficiency(candidate: Candidate, reference: Candidate) -> float | None:
    """Strong scaling against the reference: the global batch is held. None where time is not known."""
    time, base = candidate.estimate.time, reference.estimate.time
    if time is None or base is None:
        return None
    return strong_efficiency(
        time.step_s,
        num_devices=candidate.plan.num_devices,
        base_step_s=base.step_s,
        base_num_devices=reference.plan.num_devices,
    )


def _pays_from(candidates: list[Candidate], single: Candidate | None) -> int | None:
    """Smallest count that finishes a step sooner than one device; any that fits, where one device does not."""
    for candidate in candidates:
        if single is None or step_s(candidate) < step_s(single):
            return candidate.plan.num_devices
    return None


def _pays_until(candidates: list[Candidate], single: Candidate | None) -> int | None:
    """Last count reached by steps each of which shortens the step as `PAYING_DOUBLING` asks of a doubling."""
    if not candidates:
        return None
    last = single or candidates[0]
    for candidate in candidates if single is not None else candidates[1:]:
        growth = candidate.plan.num_devices / last.plan.num_devices
        if step_s(last) / step_s(candidate) < PAYING_DOUBLING ** log2(growth):
            break
        last = candidate
    return last.plan.num_devices


def _choose(pricer: Pricer, candidates: list[Candidate], until: int | None) -> Candidate | None:
    """Cheapest that meets the goal, better with our error in it; else the fastest while counting up pays."""
    if not candidates:
        return None
    if pricer.goal.deadline_s is not None:
        meeting = [c for c in candidates if pricer.meets_goal(c)]
        if meeting:
            return _cheapest([c for c in meeting if _surely(pricer, c)] or meeting)
        return min(candidates, key=step_s)
    paying = [c for c in candidates if until is None or c.plan.num_devices <= until] or candidates[:1]
    return min(paying, key=step_s)


def _cheapest(candidates: list[Candidate]) -> Candidate:
    """Fewest devices among those that cost least, within our error; by devices alone where no price is known."""
    costs = [candidate.cost_usd for candidate in candidates if candidate.cost_usd is not None]
    if len(costs) < len(candidates):
        return candidates[0]
    limit = min(costs) * (1 + SAME_COST)
    return next(c for c in candidates if c.cost_usd is not None and c.cost_usd <= limit)


def _surely(pricer: Pricer, candidate: Candidate) -> bool:
    """Whether the slow end of the band meets the deadline too, and the memory band stays inside what is usable."""
    deadline, band = pricer.goal.deadline_s, finish_band(candidate)
    if deadline is None or band is None:
        return False
    _, late = band
    return late <= deadline and candidate.estimate.memory.verdict is FitVerdict.FITS
