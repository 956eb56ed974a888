import pytest
import torch
from torch.nn import functional

from advisor.workload.build import SkipLargeFills
from advisor.workload.techniques import nf4
from advisor.workload.techniques.nf4 import NF4Weight, frozen_linear


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_takes_4_127_bits_a_weight():
    weight = NF4Weight(torch.empty(64 * 256, 64).normal_())
    bits = 8 * sum(buffer.nbytes for buffer in weight.buffers() if buffer.dim())
    assert bits / (64 * 256 * 64) == pytest.approx(4.127, abs=5e-4)


@pytest.mark.parametrize("shape", [(128, 64), (33, 7), (64, 300)])
def test_round_trip(shape):
    weight = normal(*shape) * 0.02
    decoded = NF4Weight(weight).decode(torch.float32)
    assert decoded.shape == weight.shape
    # Half the widest gap between levels (1 - 0.6962) times a block's largest weight, and the scale's own rounding.
    assert (decoded - weight).abs().max() < 0.5 * 0.3038 * weight.abs().max() * 1.05
    assert (decoded - weight).norm() < 0.11 * weight.norm()


def test_may_be_decoded_in_pieces(monkeypatch):
    weight = normal(128, 70)
    whole = NF4Weight(weight).decode(torch.bfloat16)
    monkeypatch.setattr(nf4, "_CHUNK_BLOCKS", 8)
    assert torch.equal(NF4Weight(weight).decode(torch.bfloat16), whole)


@pytest.mark.parametrize("transposed", [False, True])
def test_linear_is_that_of_the_decoded_weight_forward_and_backward(transposed):
    weight = NF4Weight(normal(8, 16) if transposed else normal(16, 8))
    matrix = weight.decode(torch.float32)
    x, bias = normal(4, 8, seed=1).requires_grad_(), normal(16, seed=2)
    expected = functional.linear(x, matrix.t() if transposed else matrix, bias)
    (gradient,) = torch.autograd.grad(expected.square().sum(), x)
    out = frozen_linear(x, weight, bias, transposed=transposed)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), x)[0], gradient)


def test_a_large_weight_costs_nothing_where_fills_are_skipped(monkeypatch):
    monkeypatch.setattr(nf4, "quantise", None)  # called, it would raise
    with SkipLargeFills():
        weight = NF4Weight(torch.empty(512, 512))
    assert weight.codes.numel() == 512 * 512 // 2


def test_works_in_the_autocast_dtype():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = frozen_linear(normal(4, 8).requires_grad_(), NF4Weight(normal(16, 8)), None, transposed=False)
    assert out.dtype == torch.bfloat16
