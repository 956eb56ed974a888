import pytest
import torch

from advisor.errors import UsageError
from advisor.workload.techniques.compensated import with_compensation


def after(make, *, dtype, steps=100):
    parameter = torch.nn.Parameter(torch.full((64,), 1.0, dtype=dtype))
    optimizer = make([parameter])
    for _ in range(steps):
        parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
    return parameter.detach().float(), optimizer


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.5, weight_decay=0.1)


def nesterov(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.5, nesterov=True)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)


@pytest.mark.parametrize("make", [sgd, nesterov, adamw, adam])
def test_follows_float32_where_bfloat16_stands_still(make):
    exact, _ = after(make, dtype=torch.float32)
    plain, _ = after(make, dtype=torch.bfloat16)
    compensated, _ = after(lambda p: with_compensation(make(p)), dtype=torch.bfloat16)
    assert torch.equal(plain, torch.ones(64))  # MP-1: an update up to 2**-8 of a weight of 1 is lost
    torch.testing.assert_close(compensated, exact, rtol=2**-8, atol=0)  # one rounding of the weight


def test_six_bytes_of_state_per_parameter():
    _, optimizer = after(lambda p: with_compensation(adamw(p)), dtype=torch.bfloat16, steps=1)
    (state,) = optimizer.state.values()
    assert sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor)) == 64 * 6


def test_refuses_what_it_does_not_do():
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    for optimizer in (torch.optim.Adam(parameters, amsgrad=True), torch.optim.RMSprop(parameters)):
        with pytest.raises(UsageError, match="no compensated form"):
            with_compensation(optimizer)
