"""A session in this process: for the Python API, where the workload is made of the caller's own functions."""

from __future__ import annotations

from typing import Self

from advisor.discovery import discover
from advisor.errors import UsageError, WorkloadError
from advisor.measure.result import Measurement, Outcome
from advisor.options.base import Option, Recipe
from advisor.trace.records import StepTrace, TraceTarget
from advisor.workload.checks import check_batch_size
from advisor.workload.failures import user_code
from advisor.workload.spec import Workload, WorkloadDescription


class LocalSession:
    """Traces and measures `workload` here, as `advisor.session.base.Session` says."""

    def __init__(self, workload: Workload, description: WorkloadDescription) -> None:
        self._workload = workload
        self._description = description
        self._traces: dict[tuple[Recipe, TraceTarget], StepTrace] = {}

    @property
    def description(self) -> WorkloadDescription:
        return self._description

    def trace(self, recipe: Recipe, target: TraceTarget) -> StepTrace:
        if (recipe, target) not in self._traces:
            self._traces[recipe, target] = trace_recipe(self._workload, recipe, target)
            self._refine()
        return self._traces[recipe, target]

    def measure(self, recipe: Recipe, *, time_limit_s: float) -> Measurement:
        measurement = measure_recipe(self._workload, recipe, time_limit_s=time_limit_s)
        self._refine()
        return measurement

    def _refine(self) -> None:
        from advisor.workload.loader import refined

        self._description = refined(self._description, self._workload)

    def close(self) -> None:
        self._traces.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def apply_recipe(workload: Workload, recipe: Recipe) -> Workload:
    """The workload with every choice of the recipe applied, in the options' own order."""
    check_batch_size(recipe.micro_batch_size)
    check_batch_size(recipe.num_microbatches, name="num_microbatches")
    options = discover("advisor.options", "OPTION", Option)  # type: ignore[type-abstract]
    if unknown := [name for name, _ in recipe.choices if name not in options]:
        raise UsageError(f"no option {unknown[0]!r}", hint=f"known: {', '.join(options)}")
    workload = workload.with_execution(
        micro_batch_size=recipe.micro_batch_size, num_microbatches=recipe.num_microbatches
    )
    for name, value in sorted(recipe.choices, key=lambda choice: options[choice[0]].order):
        workload = options[name].apply(workload, value)
    return workload


def trace_recipe(workload: Workload, recipe: Recipe, target: TraceTarget) -> StepTrace:
    from advisor.trace.tracer import trace_step

    with user_code("tracing one step"):
        return trace_step(apply_recipe(workload, recipe), target)


def measure_recipe(workload: Workload, recipe: Recipe, *, time_limit_s: float) -> Measurement:
    from advisor.measure.runner import measure_step

    changed = apply_recipe(workload, recipe)
    try:
        with user_code("running one step"):
            return measure_step(changed, time_limit_s=time_limit_s)
    except WorkloadError as error:
        return Measurement(outcome=Outcome.CRASHED, reason=error.message)
