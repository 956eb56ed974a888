"""What a model, a loss and a batch size must be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import UsageError, WorkloadError
from advisor.workload.checks import check_batch_size, check_loss, check_model


def test_a_usable_model_and_loss() -> None:
    model = nn.Linear(2, 2)
    assert check_model(model) is model
    loss = model(torch.ones(1, 2)).sum()
    assert check_loss(loss) is loss
    assert check_batch_size(1) == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear, "gave the class Linear, not an nn.Module"),
        ((nn.Linear(2, 2), 1), "gave a tuple, not an nn.Module"),
        (nn.ReLU(), "ReLU has no parameters"),
        (nn.Linear(2, 2).requires_grad_(False), "all 2 parameters of Linear are frozen"),
    ],
)
def test_models_that_can_not_train(model: Any, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        check_model(model)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (None, "the loss is a NoneType, not a tensor"),
        (torch.zeros(3, requires_grad=True), "the loss has shape (3,), not a scalar"),
        (torch.zeros(()), "the loss has no gradient"),
    ],
)
def test_losses_that_can_not_train(loss: Any, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        check_loss(loss)
    assert message in caught.value.message


@pytest.mark.parametrize("size", [0, -4])
def test_batch_sizes_that_are_none(size: int) -> None:
    with pytest.raises(UsageError, match=f"micro_batch_size is {size}; it must be at least 1"):
        check_batch_size(size)


def test_a_vector_names_the_return_of_a_function_of_the_user() -> None:
    def compute_loss(model: nn.Module, batch: Any) -> Any:
        return model(batch)

    with pytest.raises(
        WorkloadError, match=r"test_checks\.py:\d+ \(return model\(batch\)\): the loss has shape \(1, 2\)"
    ):
        check_loss(nn.Linear(2, 2)(torch.ones(1, 2)), made_by=compute_loss)
