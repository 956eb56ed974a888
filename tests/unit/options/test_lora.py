import pytest
from fabricated_facts import some_facts, transformer_trace
from small_workloads import gpt, losses, mlp

from advisor.errors import UsageError
from advisor.options.base import Risk
from advisor.options.lora import OPTION


def test_only_for_a_fine_tune_of_blocks_with_linear_layers():
    facts = some_facts(fine_tune=True)
    assert list(OPTION.values(facts)) == ["none", "r64", "r16", "r8", "qlora-r64", "qlora-r16", "qlora-r8"]
    assert OPTION.why_not(facts) is None
    assert "fine-tune" in (OPTION.why_not(some_facts()) or "")
    assert list(OPTION.values(some_facts(transformer_trace(num_blocks=0), fine_tune=True))) == ["none"]


@pytest.mark.parametrize("value", ["r2", "qlora-r2"])
def test_trains_the_adapters_of_every_linear_layer_of_a_block_and_nothing_else(value):
    width, layers, rank = 32, 4, 2
    model = OPTION.apply(gpt(width=width, layers=layers), value).build_model()
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert trained == layers * sum(rank * (inputs + outputs) for inputs, outputs in shapes)  # MEM-7


def test_starts_where_the_model_is_and_learns():
    plain = losses(gpt(layers=2), steps=1)[0]
    first, *_, last = losses(OPTION.apply(gpt(layers=2), "r4"), steps=5)
    assert first == pytest.approx(plain, rel=1e-6)  # B = 0
    assert last < first


def test_quantised_starts_close_and_learns():
    plain = losses(gpt(layers=2), steps=1)[0]
    first, *_, last = losses(OPTION.apply(gpt(layers=2), "qlora-r4"), steps=5)
    assert first == pytest.approx(plain, rel=0.02)
    assert last < first


def test_refuses_a_model_without_blocks():
    with pytest.raises(UsageError, match="repeated blocks"):
        OPTION.apply(mlp(layers=1), "r8").build_model()


def test_risk_and_snippet():
    assert OPTION.risk("r8") is Risk.MODEL
    assert "r=16" in OPTION.snippet("qlora-r16")
    assert "nf4" in OPTION.snippet("qlora-r16")
    assert "nf4" not in OPTION.snippet("r16")
