"""Recipes in, candidates out: trace, price, and what the price means for the goal. Remembers what it has seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from advisor.collector import collector_paused
from advisor.cost.estimate import Estimate
from advisor.cost.memory import estimate_memory
from advisor.cost.price import price
from advisor.hardware.mesh import Mesh
from advisor.hardware.profile import ClusterProfile, DeviceProfile
from advisor.measure.result import Measurement
from advisor.options.base import Recipe
from advisor.options.packing import samples_per_row
from advisor.parallel.base import Strategy
from advisor.search.plan import Candidate, Goal, Plan
from advisor.session.base import Session
from advisor.trace.records import StepTrace, TraceTarget

Progress = Callable[[str, float | None], None]  # (what is being done, share done or None)


def trace_target(device: DeviceProfile) -> TraceTarget:
    """ROCm is traced as CUDA; a device that no rule is known for follows CPU semantics."""
    semantics = {"cuda": "cuda", "rocm": "cuda", "mps": "mps"}.get(device.device_type, "cpu")
    return TraceTarget(device_type=semantics, compute_capability=device.compute_capability)


def trace_on(session: Session, device: DeviceProfile, recipe: Recipe) -> StepTrace:
    """The step; from the third micro-batch on they are all alike, so a trace of two serves any number."""
    alike = replace(recipe, num_microbatches=min(recipe.num_microbatches, 2))
    trace = session.trace(alike, trace_target(device))
    return replace(trace, num_microbatches=recipe.num_microbatches)


@dataclass(slots=True)
class Pricer:
    """One workload on one kind of device."""

    session: Session
    device: DeviceProfile
    goal: Goal
    cluster: ClusterProfile | None = None
    price_usd_per_hour: float | None = None  # the user's own; else the profile's
    progress: Progress = lambda what, share: None
    _estimates: dict[Plan, Estimate] = field(default_factory=dict)

    def trace(self, recipe: Recipe) -> StepTrace:
        return trace_on(self.session, self.device, recipe)

    @collector_paused()
    def single(self, recipe: Recipe, label: str) -> Candidate:
        """The recipe on one device. Raises `TraceError` where the recipe can't be traced."""
        plan = Plan(recipe=recipe, mesh=Mesh())
        if plan not in self._estimates:
            self.progress(f"tracing {label}", None)
            self._estimates[plan] = price(self.trace(recipe), self.device)
        return self._candidate(plan, self._estimates[plan])

    @collector_paused()
    def distributed(self, plan: Plan, strategy: Strategy) -> Candidate:
        """The plan on its mesh, one rank priced with its communication."""
        if (estimate := self._estimates.get(plan)) is None or estimate.time is None:
            sharded = self._sharded(plan, strategy)
            self._estimates[plan] = price(sharded, self.device, cluster=self.cluster, mesh=plan.mesh)
        return self._candidate(plan, self._estimates[plan])

    @collector_paused()
    def distributed_if_it_fits(self, plan: Plan, strategy: Strategy) -> Candidate:
        """The same, without the time of a plan that does not fit: hundreds end there, and nobody asks how long."""
        if plan not in self._estimates:
            sharded = self._sharded(plan, strategy)
            memory = estimate_memory(sharded, self.device)
            self._estimates[plan] = (
                price(sharded, self.device, cluster=self.cluster, mesh=plan.mesh, memory=memory)
                if memory.fits
                else Estimate(memory=memory, time=None, num_devices=plan.num_devices)
            )
        return self._candidate(plan, self._estimates[plan])

    def _sharded(self, plan: Plan, strategy: Strategy) -> StepTrace:
        assert self.cluster is not None
        trace = self.trace(plan.recipe)
        return strategy.shard(trace, plan.mesh, reshard_after_forward=plan.reshard_after_forward)

    def _candidate(self, plan: Plan, estimate: Estimate) -> Candidate:
        candidate = Candidate(plan=plan, estimate=estimate)
        return candidate if estimate.time is None else self._timed(candidate, estimate.time.step_s)

    def with_measurement(self, candidate: Candidate, measurement: Measurement) -> Candidate:
        """The candidate beside its real run; where no time was predicted, the run says how long the job takes."""
        candidate = replace(candidate, measurement=measurement)
        if candidate.estimate.time is not None or measurement.step_time_s is None:
            return candidate
        return self._timed(candidate, measurement.step_time_s)

    def _timed(self, candidate: Candidate, step_time_s: float) -> Candidate:
        """What a step of this length means for the goal."""
        plan = candidate.plan
        rows = plan.recipe.micro_batch_size * plan.recipe.num_microbatches * plan.mesh.data_parallel_size
        samples = rows * samples_per_row(plan.recipe.choice("packing"))
        finish = None if self.goal.samples is None else self.goal.samples / samples * step_time_s
        return replace(
            candidate,
            samples_per_s=samples / step_time_s,
            finish_s=finish,
            cost_usd=None if finish is None else self.cost(plan.num_devices, finish),
        )

    def cost(self, num_devices: int, seconds: float) -> float | None:
        """Price of the booking; a cluster is booked in whole nodes. None where no price is stated."""
        hours = seconds / 3600
        if self.price_usd_per_hour is not None:
            return num_devices * self.price_usd_per_hour * hours
        if num_devices > 1 and self.cluster is not None:
            nodes = math.ceil(num_devices / self.cluster.devices_per_node)
            if self.cluster.price_usd_per_hour is not None:
                return nodes * self.cluster.price_usd_per_hour.value * hours
            num_devices = nodes * self.cluster.devices_per_node
        if self.device.price_usd_per_hour is None:
            return None
        return num_devices * self.device.price_usd_per_hour.value * hours

    def meets_goal(self, candidate: Candidate) -> bool:
        """Whether deadline and budget hold, as far as they are given and known."""
        deadline, budget = self.goal.deadline_s, self.goal.budget_usd
        if deadline is not None and (candidate.finish_s is None or candidate.finish_s > deadline):
            return False
        return not (budget is not None and candidate.cost_usd is not None and candidate.cost_usd > budget)


def fits(candidate: Candidate) -> bool:
    return candidate.estimate.memory.fits


def step_s(candidate: Candidate) -> float:
    """Seconds per optimizer step; infinite where time is not known, so that memory alone decides."""
    return math.inf if candidate.estimate.time is None else candidate.estimate.time.step_s


def finish_band(candidate: Candidate) -> tuple[float, float] | None:
    """Seconds to finish at both ends of the predicted band; None where time is not predicted or no length was given."""
    time = candidate.estimate.time
    if time is None or candidate.finish_s is None:
        return None
    return candidate.finish_s * time.low_s / time.step_s, candidate.finish_s * time.high_s / time.step_s


def divisors(number: int) -> list[int]:
    """Sizes that a held batch can be cut into."""
    return [d for d in range(1, number + 1) if number % d == 0]
