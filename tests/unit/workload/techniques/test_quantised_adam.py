import pytest
import torch

from advisor.errors import UsageError
from advisor.workload.techniques import quantised_adam
from advisor.workload.techniques.quantised_adam import FORMATS, QuantisedAdam, from_adam

# optimisation specification, MEM-5 and its table: bytes of both moments per parameter
BYTES = {"8bit": 2 + 2 * 4 / 256, "4bit": 1 + 2 * 4 / 128, "fp8": 2 + 2 * 4 / 256}


def stepped(make, *, numel=8192, steps=10, dtype=torch.float32):
    """A parameter after some steps of seeded gradients whose size differs between blocks, and its optimizer."""
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(numel, generator=generator).to(dtype))
    sizes = torch.logspace(-3, 0, numel // 64).repeat_interleave(64)
    optimizer = make([parameter])
    for _ in range(steps):
        parameter.grad = (torch.randn(numel, generator=generator) * sizes).to(dtype)
        optimizer.step()
    return parameter.detach(), optimizer


def state_bytes(optimizer):
    (state,) = optimizer.state.values()
    return sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("state_format", FORMATS)
def test_bytes_per_parameter(state_format):
    _, optimizer = stepped(lambda p: QuantisedAdam(p, state_format=state_format), steps=1)
    assert state_bytes(optimizer) == 8192 * BYTES[state_format]


@pytest.mark.parametrize("numel", [4032, 4160])  # under 4096; not whole blocks of 128 or 256
@pytest.mark.parametrize("state_format", FORMATS)
def test_small_and_odd_parameters_are_plain_adamw(state_format, numel):
    quantised, optimizer = stepped(lambda p: QuantisedAdam(p, weight_decay=0.1, state_format=state_format), numel=numel)
    plain, _ = stepped(lambda p: torch.optim.AdamW(p, weight_decay=0.1), numel=numel)
    assert state_bytes(optimizer) == numel * 8
    torch.testing.assert_close(quantised, plain)


@pytest.mark.parametrize(("state_format", "apart"), [("8bit", 0.05), ("fp8", 0.1), ("4bit", 0.5)])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_moves_as_adam_does(kind, state_format, apart):
    def make(parameters):
        return kind(parameters, lr=1e-2, betas=(0.8, 0.95), weight_decay=0.1)

    start, _ = stepped(make, steps=0)
    plain, _ = stepped(make)
    quantised, _ = stepped(lambda p: from_adam(make(p), state_format))
    assert (quantised - plain).norm() < apart * (plain - start).norm()


def test_a_parameter_may_be_updated_in_pieces(monkeypatch):
    whole, _ = stepped(lambda p: QuantisedAdam(p, state_format="4bit"))
    monkeypatch.setattr(quantised_adam, "_CHUNK", 1024)
    pieces, _ = stepped(lambda p: QuantisedAdam(p, state_format="4bit"))
    assert torch.equal(whole, pieces)


def test_channels_last_parameters_are_updated_where_they_are():
    parameter = torch.nn.Parameter(torch.randn(16, 32, 4, 4).to(memory_format=torch.channels_last))
    plain = torch.nn.Parameter(parameter.detach().clone().contiguous())
    for each in (parameter, plain):
        each.grad = torch.linspace(-1, 1, 8192).view(16, 32, 4, 4)
        QuantisedAdam([each]).step()
    torch.testing.assert_close(parameter.detach(), plain.detach())
    assert parameter.is_contiguous(memory_format=torch.channels_last)


def test_refuses_what_it_does_not_do():
    parameters = [torch.nn.Parameter(torch.zeros(2))]
    with pytest.raises(UsageError, match="AMSGrad"):
        from_adam(torch.optim.Adam(parameters, amsgrad=True), "8bit")
    with pytest.raises(UsageError, match="SGD"):
        from_adam(torch.optim.SGD(parameters), "8bit")
