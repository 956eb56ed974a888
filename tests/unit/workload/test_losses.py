"""Losses by name, by expression, and in what forward returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from advisor.errors import UsageError, WorkloadError
from advisor.workload.expressions import namespace
from advisor.workload.losses import call_model, find_loss, given_loss
from advisor.workload.target import TargetSpec

SCOPE = namespace({})


class Net(nn.Module):
    """Returns what it is told to, made of its only parameter."""

    def __init__(self, make: Any = lambda w, x: w * x) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        self.last = self.make(self.weight, x)
        return self.last


def loss(model: nn.Module, batch: Any, *, has_target: bool, **flags: Any) -> Any:
    part = given_loss(TargetSpec(target="model.py", **flags), SCOPE, has_target=has_target)
    assert part is not None
    return part.function(model, batch)


@pytest.mark.parametrize(
    ("name", "out", "target", "expected"),
    [
        ("ce", torch.randn(4, 10), torch.arange(4), F.cross_entropy),
        ("ce", torch.randn(4, 10, 5, 5), torch.ones(4, 5, 5, dtype=torch.int64), F.cross_entropy),
        ("nll", torch.randn(4, 10), torch.arange(4), F.nll_loss),
        ("mse", torch.randn(4, 3), torch.randn(4, 3), F.mse_loss),
        ("l1", torch.randn(4), torch.randn(4), F.l1_loss),
        ("bce", torch.randn(4), torch.rand(4), F.binary_cross_entropy_with_logits),
    ],
)
def test_named_losses(name: str, out: torch.Tensor, target: torch.Tensor, expected: Any) -> None:
    assert loss(Net(), (out, target), has_target=True, loss=name).item() == pytest.approx(expected(out, target).item())


def test_classes_in_the_last_dimension() -> None:
    logits, target = torch.randn(2, 7, 11), torch.randint(0, 11, (2, 7))
    expected = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    assert loss(Net(), (logits, target), has_target=True, loss="ce").item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    "wrap", [lambda t: SimpleNamespace(logits=t), lambda t: {"logits": t, "h": t}, lambda t: (t, 3)]
)
def test_the_main_output_of_several(wrap: Any) -> None:
    batch = (torch.randn(4, 10), torch.arange(4))
    model = Net(lambda w, x: wrap(w * x))
    assert loss(model, batch, has_target=True, loss="ce").item() == pytest.approx(F.cross_entropy(*batch).item())


def test_several_outputs_are_not_chosen_between() -> None:
    with pytest.raises(WorkloadError) as caught:
        loss(Net(lambda w, x: (w * x, w + x)), (torch.ones(2), torch.ones(2)), has_target=True, loss="mse")
    assert caught.value.message == "--loss mse: the model returns 2 float tensors in a tuple"
    assert caught.value.hint == "say which: --loss 'F.mse_loss(out[0], target)'"


def test_a_target_within_the_batch_is_what_forward_does_not_take() -> None:
    batch = (torch.randn(4, 10), torch.arange(4))
    assert loss(Net(), batch, has_target=False, loss="ce").item() == pytest.approx(F.cross_entropy(*batch).item())
    assert loss(Net(), batch, has_target=False, loss="target.sum()").item() == 6


def test_no_target_to_compare_with() -> None:
    with pytest.raises(WorkloadError) as caught:
        loss(Net(), (torch.ones(2),), has_target=False, loss="mse")
    assert "compares the output with a target" in caught.value.message
    assert "--target" in (caught.value.hint or "")


def test_shapes_are_never_broadcast() -> None:
    with pytest.raises(WorkloadError, match=r"--loss mse: the output has shape \(4, 1\), the target \(4,\)"):
        loss(Net(), (torch.ones(4, 1), torch.ones(4)), has_target=True, loss="mse")


def test_an_unknown_name() -> None:
    with pytest.raises(UsageError) as caught:
        given_loss(TargetSpec(target="model.py", loss="mae"), SCOPE, has_target=True)
    assert caught.value.hint == "known: ce, mse, bce, nll, l1, or an expression"


@pytest.mark.parametrize(
    ("expression", "calls"),
    [("out.sum()", 1), ("model(batch).sum()", 1), ("model.last.sum()", 1), ("imp('math').log2(model.make(1, 2))", 1)],
)
def test_forward_runs_once_unless_the_expression_runs_the_model_itself(expression: str, calls: int) -> None:
    count = []
    model = Net(lambda w, x: count.append(1) or w * x)
    loss(model, torch.ones(2), has_target=False, loss=expression)
    assert len(count) == calls


def test_call_is_the_way_in() -> None:
    model = Net()
    assert loss(model, (torch.ones(2), 1), has_target=False, loss="out.sum()", call="model(batch[0] * 3)").item() == 6


@pytest.mark.parametrize("batch", [torch.ones(2), (torch.ones(2),), {"x": torch.ones(2)}])
def test_how_a_batch_is_passed(batch: Any) -> None:
    assert call_model(Net(), batch).sum().item() == 2


def test_a_batch_that_forward_can_not_take() -> None:
    with pytest.raises(WorkloadError) as caught:
        call_model(Net(), (torch.ones(2), torch.ones(2)))
    assert "Net.forward(x)" in caught.value.message
    assert "can't take the batch (Tensor, Tensor): too many positional arguments" in caught.value.message


W = torch.ones((), requires_grad=True)


@pytest.mark.parametrize(
    ("out", "value", "label", "guessed"),
    [
        (SimpleNamespace(loss=2 * W), 2, "out.loss", False),
        ({"loss": 3 * W, "other": W}, 3, 'out["loss"]', False),
        ((torch.ones(2) * W, 4 * W, None), 4, "the scalar in what forward returns", True),
        (5 * W, 5, "out", True),
        ({"a": W * torch.ones(3), "b": [3 * W * torch.ones(2)]}, 2, "proxy: mean of the float outputs", True),
        (6 * W * torch.ones(2), 6, "proxy: mean of the float outputs", True),
    ],
)
def test_loss_in_the_output(out: Any, value: float, label: str, guessed: bool) -> None:
    found, found_label, guess = find_loss(out)
    assert (found.item(), found_label) == (value, label)
    assert (guess is not None) == guessed
    assert guess is None or guess.flag == "--loss"


def test_no_loss_in_the_output() -> None:
    with pytest.raises(WorkloadError, match="returns a Tensor without any float tensor that has a gradient"):
        find_loss(torch.ones(2))
