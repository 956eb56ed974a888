"""Loss and optimizer decided with the model at hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import WorkloadError
from advisor.workload.found import FoundLoss, FoundOptimizer
from advisor.workload.losses import call_model


class LightningModule(nn.Module):
    """Recognised by its name."""


class Lit(LightningModule):
    def __init__(self, configured: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.configured = configured

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return (self.weight * x - y).sum()

    def configure_optimizers(self) -> Any:
        if self.configured is None:
            raise RuntimeError("not attached to a Trainer")
        return self.configured(self)


def test_training_step_gets_inputs_and_target_in_one() -> None:
    found = FoundLoss(call_model, has_target=True)
    assert found(Lit(), ((torch.ones(()),), torch.zeros(()))).item() == 1
    assert (found.label, found.guess) == ("training_step(batch, 0)", None)


def test_what_forward_returns() -> None:
    found = FoundLoss(call_model, has_target=False)
    assert found(nn.Linear(2, 2), torch.ones(1, 2)).dim() == 0
    assert found.label.startswith("proxy")
    assert found.guess is not None


def test_a_target_that_nothing_compares() -> None:
    with pytest.raises(WorkloadError, match="--target without --loss"):
        FoundLoss(call_model, has_target=True)(nn.Linear(2, 2), (torch.ones(1, 2), torch.ones(1)))


def test_the_configured_optimizer() -> None:
    found = FoundOptimizer()
    assert isinstance(found(Lit(lambda model: torch.optim.SGD(model.parameters()))), torch.optim.SGD)
    assert (found.label, found.guess) == ("configure_optimizers()", None)


def test_adamw_where_the_trainer_is_missing_or_nothing_is_said() -> None:
    for model, why in (
        (Lit(), "configure_optimizers() needs what is not here: not attached"),
        (nn.Linear(2, 2), "nothing"),
    ):
        found = FoundOptimizer()
        assert isinstance(found(model), torch.optim.AdamW)
        assert found.guess is not None
        assert found.guess.why.startswith(why)


def test_a_method_of_that_name_outside_lightning_does_not_count() -> None:
    class GPT(nn.Linear):
        def configure_optimizers(self, weight_decay: float, learning_rate: float) -> None:
            raise AssertionError("nanoGPT's, not Lightning's")

    assert isinstance(FoundOptimizer()(GPT(2, 2)), torch.optim.AdamW)
