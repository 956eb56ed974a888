"""Optimizers by name, by expression, and assumed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from advisor.errors import UsageError, WorkloadError
from advisor.workload.expressions import namespace
from advisor.workload.optimizers import assumed_optimizer, given_optimizer
from advisor.workload.target import OPTIMIZERS

SCOPE = namespace({})


def model() -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].requires_grad_(False)
    return net


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_names(name: str) -> None:
    optimizer = given_optimizer(name, SCOPE).function(model())
    assert type(optimizer).__name__.lower() == name
    assert len(optimizer.param_groups[0]["params"]) == 2  # frozen ones are left out


def test_expressions() -> None:
    part = given_optimizer("torch.optim.SGD(model.parameters(), lr=0.5)", SCOPE)
    assert part.function(model()).param_groups[0]["lr"] == 0.5
    assert part.label == "torch.optim.SGD(model.parameters(), lr=0.5)"


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError) as caught:
        given_optimizer("RMSProb", SCOPE)
    assert caught.value.hint == "did you mean rmsprop?"


def test_an_expression_of_something_else() -> None:
    with pytest.raises(WorkloadError, match=r"--optimizer torch.optim.SGD gave a type, not a torch optimizer"):
        given_optimizer("torch.optim.SGD", SCOPE).function(model())


def test_what_is_assumed_is_a_guess() -> None:
    part = assumed_optimizer("nothing says which")
    assert isinstance(part.function(model()), torch.optim.AdamW)
    assert part.guess is not None
    assert (part.guess.flag, part.guess.why) == ("--optimizer", "nothing says which")
