import pytest
import torch

from advisor.workload.techniques.codebooks import (
    dequantise,
    dynamic_levels,
    linear_levels,
    nf4_levels,
    pack,
    padded,
    quantise,
    unpack,
)


def test_dynamic_levels_are_those_of_dettmers():
    signed = dynamic_levels(signed=True, bits=8, exponents=7)
    unsigned = dynamic_levels(signed=False, bits=8, exponents=7)
    assert len(signed) == len(unsigned) == 256
    assert (signed[0], signed[-2], signed[-1]) == pytest.approx((-0.99297, 0.99297, 1.0), abs=1e-5)
    assert (unsigned[0], unsigned[1], unsigned[-1]) == pytest.approx((0.0, 3.25e-7, 1.0))
    assert dynamic_levels(signed=True, bits=4, exponents=3)[:4] == pytest.approx((-0.8875, -0.6625, -0.4375, -0.2125))


def test_linear_levels_have_no_zero():
    assert linear_levels(4)[0] == 1 / 16
    assert linear_levels(4)[-1] == 1


def test_nf4_levels_are_those_of_the_paper():
    # QLoRA, appendix E
    published = (-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
                 0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0)  # fmt: skip
    assert nf4_levels() == pytest.approx(published, abs=1e-6)


def test_every_element_takes_the_nearest_level_of_its_block():
    values = torch.randn(4 * 64, generator=torch.Generator().manual_seed(0)) * 3
    codes, scale = quantise(values, nf4_levels(), block=64)
    assert torch.equal(scale, values.view(4, 64).abs().amax(1))
    levels = torch.tensor(nf4_levels())
    nearest = (values.view(4, 64) / scale[:, None])[..., None].sub(levels).abs().argmin(-1)
    assert torch.equal(codes.view(4, 64).long(), nearest)
    assert torch.equal(dequantise(codes, nf4_levels(), scale).view(4, 64), levels[nearest] * scale[:, None])


def test_a_block_of_zeros_stays_zero():
    codes, scale = quantise(torch.zeros(64), nf4_levels(), block=64)
    assert torch.equal(dequantise(codes, nf4_levels(), scale), torch.zeros(64))


def test_two_codes_fit_in_a_byte():
    codes = torch.arange(16, dtype=torch.uint8)
    assert pack(codes).numel() == 8
    assert torch.equal(unpack(pack(codes)), codes)


def test_padded():
    assert [padded(n, 64) for n in (1, 64, 65)] == [64, 64, 128]
