"""Loss and optimizer where nothing is said: decided with the model at hand, and remembered for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from advisor.errors import WorkloadError
from advisor.workload import lightning
from advisor.workload.batches import flattened
from advisor.workload.constructors import is_a
from advisor.workload.losses import CallModel, find_loss
from advisor.workload.optimizers import assumed_optimizer
from advisor.workload.spec import Guess

if TYPE_CHECKING:
    import torch


class FoundLoss:
    """A LightningModule's `training_step`, else the loss in what forward returns, else a proxy."""

    def __init__(self, call: CallModel, *, has_target: bool) -> None:
        self._call, self._has_target = call, has_target
        self.label = "training_step, or what forward returns"
        self.guess: Guess | None = None

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        if is_a(type(model), "LightningModule"):
            self.label = "training_step(batch, 0)"
            return lightning.training_step(model, flattened(batch) if self._has_target else batch)
        if self._has_target:
            raise WorkloadError("--target without --loss: nothing compares it with the output", hint="add --loss ce")
        loss, self.label, self.guess = find_loss(self._call(model, batch))
        return loss


class FoundOptimizer:
    """A LightningModule's `configure_optimizers`, else AdamW."""

    def __init__(self) -> None:
        self.label = "configure_optimizers(), or AdamW"
        self.guess: Guess | None = None

    def __call__(self, model: Any) -> torch.optim.Optimizer:
        part = assumed_optimizer("nothing says which optimizer trains it")
        if is_a(type(model), "LightningModule"):
            lightning.attach_trainer(model)
            try:
                configured = model.configure_optimizers()
            except Exception as error:  # a datamodule, a callback
                part = assumed_optimizer(f"configure_optimizers() needs what is not here: {error}")
            else:
                self.label = "configure_optimizers()"
                return lightning.only_optimizer(configured, type(model).__name__)
        self.label, self.guess = part.label, part.guess
        optimizer: torch.optim.Optimizer = part.function(model)
        return optimizer
