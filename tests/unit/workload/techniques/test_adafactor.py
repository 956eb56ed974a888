import pytest
import torch

from advisor.workload.techniques.adafactor import Adafactor


@pytest.mark.parametrize("shape", [(100, 60), (7,), (8, 4, 3, 3)])
def test_is_torchs_adafactor(shape):
    def stepped(kind):
        generator = torch.Generator().manual_seed(0)
        parameter = torch.nn.Parameter(torch.randn(shape, generator=generator))
        optimizer = kind([parameter])
        for _ in range(4):
            parameter.grad = torch.randn(shape, generator=generator)
            optimizer.step()
        return parameter.detach()

    torch.testing.assert_close(stepped(Adafactor), stepped(torch.optim.Adafactor))


def test_a_thousandth_of_adams_state():
    parameter = torch.nn.Parameter(torch.zeros(1000, 1000))
    parameter.grad = torch.ones_like(parameter)
    optimizer = Adafactor([parameter])
    optimizer.step()
    held = sum(value.nbytes for value in optimizer.state[parameter].values() if isinstance(value, torch.Tensor))
    assert held / parameter.numel() == 0.008
