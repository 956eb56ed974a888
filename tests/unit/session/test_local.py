"""Recipes applied, traces remembered, failures told."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from advisor.errors import AdvisorError, UsageError
from advisor.measure.result import Outcome
from advisor.options.base import Recipe
from advisor.session.local import LocalSession, apply_recipe
from advisor.trace.records import TraceTarget
from advisor.workload.found import FoundLoss, FoundOptimizer
from advisor.workload.losses import call_model
from advisor.workload.spec import Workload, WorkloadDescription

CPU = TraceTarget(device_type="cpu")
DESCRIPTION = WorkloadDescription(target="toy", model="Linear", batch="ones", loss="?", optimizer="?")


def workload(width: int = 4) -> Workload:
    return Workload(
        build_model=lambda: nn.Linear(4, 2),
        make_batch=lambda size: torch.ones(size, width),
        compute_loss=FoundLoss(call_model, has_target=False),
        make_optimizer=FoundOptimizer(),
        variants={"small": lambda: nn.Linear(4, 1)},
    )


def test_recipe() -> None:
    recipe = (
        Recipe(micro_batch_size=3, num_microbatches=2).choosing("variant", "small").choosing("precision", "amp-bf16")
    )
    changed = apply_recipe(workload(), recipe)
    assert (changed.execution.micro_batch_size, changed.execution.num_microbatches) == (3, 2)
    assert changed.execution.autocast_dtype == "bfloat16"
    assert isinstance(model := changed.build_model(), nn.Linear)
    assert model.out_features == 1


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (Recipe(micro_batch_size=0), "micro_batch_size is 0"),
        (Recipe(micro_batch_size=1, num_microbatches=-1), "num_microbatches is -1"),
        (Recipe(micro_batch_size=1, choices=(("no_such", "x"),)), "no option 'no_such'"),
    ],
)
def test_recipes_that_are_none(recipe: Recipe, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        apply_recipe(workload(), recipe)
    assert message in caught.value.message


def test_traces_are_remembered_and_complete_the_description() -> None:
    recipe = Recipe(micro_batch_size=3)
    with LocalSession(workload(), DESCRIPTION) as session:
        assert session.description.guesses == ()
        trace = session.trace(recipe, CPU)
        assert session.trace(recipe, CPU) is trace
        assert trace.num_parameters == 10
        assert trace.micro_batch_size == 3
        assert session.description.loss.startswith("proxy")
        assert [guess.what for guess in session.description.guesses] == ["loss", "optimizer"]
        assert session.trace(recipe.choosing("variant", "small"), CPU).num_parameters == 5


def test_a_step_is_measured() -> None:
    measurement = LocalSession(workload(), DESCRIPTION).measure(Recipe(micro_batch_size=2), time_limit_s=2.0)
    assert measurement.outcome in {Outcome.COMPLETED, Outcome.TIMED_OUT}  # on a busy machine
    assert measurement.software.startswith("torch")


def test_what_fails_while_measuring_is_an_outcome() -> None:
    measurement = LocalSession(workload(width=5), DESCRIPTION).measure(Recipe(micro_batch_size=2), time_limit_s=1.0)
    assert measurement.outcome is Outcome.CRASHED
    assert "mat1 and mat2 shapes cannot be multiplied" in measurement.reason


def test_what_fails_while_tracing_is_an_error() -> None:
    with pytest.raises(AdvisorError):
        LocalSession(workload(width=5), DESCRIPTION).trace(Recipe(micro_batch_size=2), CPU)
