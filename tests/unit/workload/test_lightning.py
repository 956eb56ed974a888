"""A LightningModule's training_step and its optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import WorkloadError
from advisor.workload.lightning import only_optimizer, training_step, without_logging


class Metric(nn.Module):
    """As torchmetrics has it: looks at values."""

    def forward(self, value: torch.Tensor) -> float:
        raise RuntimeError("it looked")

    update = compute = forward


class Lit(nn.Module):
    def __init__(self, result: Any = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.metric = Metric()
        self.result = result

    def log(self, name: str, value: object) -> None:
        raise RuntimeError("no Trainer")

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> Any:
        loss = (self.weight * batch).sum()
        self.log("loss", self.metric(loss))
        self.metric.update(loss)
        return {"loss": loss} if self.result is None else self.result


def test_training_step_without_a_trainer() -> None:
    assert training_step(Lit(), torch.ones(3)).item() == 3


def test_training_step_that_takes_the_batch_alone() -> None:
    class Short(Lit):
        def training_step(self, batch: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.weight * batch

    assert training_step(Short(), torch.ones(())).item() == 1


def test_no_loss() -> None:
    with pytest.raises(WorkloadError, match="training_step returned str, not a loss"):
        training_step(Lit("done"), torch.ones(3))


def test_manual_optimisation() -> None:
    model = Lit()
    model.automatic_optimization = False
    with pytest.raises(WorkloadError, match="Lit optimises manually"):
        training_step(model, torch.ones(3))


def test_metrics_are_left_out() -> None:
    model = Lit()
    without_logging(model)
    assert model.metric(torch.ones(1)).item() == 0


def test_one_optimizer_in_every_form() -> None:
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
    scheduler = object()
    for configured in (optimizer, [optimizer], {"optimizer": optimizer}, ([optimizer], [scheduler])):
        assert only_optimizer(configured, "Lit") is optimizer
    assert only_optimizer([{"optimizer": optimizer, "lr_scheduler": scheduler}], "Lit") is optimizer


@pytest.mark.parametrize("count", [0, 2])
def test_not_one_optimizer(count: int) -> None:
    optimizers = [torch.optim.SGD([torch.ones(1, requires_grad=True)]) for _ in range(count)]
    with pytest.raises(WorkloadError, match=rf"Lit.configure_optimizers\(\) returns {count} optimizers"):
        only_optimizer(optimizers, "Lit")
