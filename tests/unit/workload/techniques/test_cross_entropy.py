import pytest
import torch
from torch import nn
from torch.nn import functional

from advisor.errors import UsageError
from advisor.workload.techniques.cross_entropy import chunked_cross_entropy


def loss_and_gradient(chunked, *, rows=37, classes=50, dtype=torch.float32, factor=1.0, **settings):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(8, classes, generator=generator).to(dtype).requires_grad_()
    features = torch.randn(rows, 8, generator=generator).to(dtype)
    target = torch.randint(0, classes, (rows,), generator=generator)
    target[::5] = -100

    def compute():
        return nn.CrossEntropyLoss(**settings)(features @ weight, target) * factor

    if chunked:
        with chunked_cross_entropy():
            loss = compute()
    else:
        loss = compute()
    loss.backward()
    return loss.detach(), weight.grad


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [1, 7, 37, 64])
def test_is_the_plain_loss_and_its_gradient(rows, reduction):
    plain = loss_and_gradient(False, rows=rows + 5, reduction=reduction, factor=0.25)
    chunked = loss_and_gradient(True, rows=rows + 5, reduction=reduction, factor=0.25)
    torch.testing.assert_close(chunked, plain)


def test_half_precision_is_worked_in_float32():
    exact = loss_and_gradient(False)
    loss, gradient = loss_and_gradient(True, dtype=torch.bfloat16)
    torch.testing.assert_close(loss.float(), exact[0], rtol=2e-2, atol=0)
    torch.testing.assert_close(gradient.float(), exact[1], rtol=0.1, atol=1e-2)


def test_no_second_copy_of_the_logits():
    logits = torch.randn(16, 32, requires_grad=True) * 1
    gradients = []
    logits.register_hook(lambda gradient: gradients.append(gradient.data_ptr()))
    with chunked_cross_entropy():
        functional.cross_entropy(logits, torch.zeros(16, dtype=torch.int64)).backward()
    assert gradients == [logits.data_ptr()]


def test_refuses_logits_that_somebody_saved():
    logits = torch.randn(4, 8, requires_grad=True).tanh()  # tanh's backward needs its output
    with chunked_cross_entropy():
        loss = functional.cross_entropy(logits, torch.zeros(4, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("settings", [{"label_smoothing": 0.1}, {"reduction": "none"}, {"weight": torch.ones(8)}])
def test_other_losses_are_left_plain_and_said_so(settings):
    logits, target = torch.randn(4, 8, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(UsageError, match="cross_entropy"), chunked_cross_entropy():
        loss = functional.cross_entropy(logits, target, **settings)
    torch.testing.assert_close(loss, functional.cross_entropy(logits, target, **settings))


def test_puts_the_plain_loss_back():
    plain = functional.cross_entropy
    with pytest.raises(UsageError), chunked_cross_entropy():
        assert functional.cross_entropy is not plain
    assert functional.cross_entropy is plain
