from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from advisor.workload.generate_variants import config_variants, halved_batch


@dataclass
class GPTConfig:
    """nanoGPT's."""

    block_size: int = 1024
    vocab_size: int = 50304
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0


def built(config):
    """The configs that the builders are given."""
    return {name: build() for name, build in config_variants(config, lambda smaller: smaller).items()}


def test_nanogpt():
    variants = built(GPTConfig())
    assert variants == {
        "half-depth": GPTConfig(n_layer=6),
        "half-width": GPTConfig(n_embd=384, n_head=6),
        "half-sequence": GPTConfig(block_size=512),
    }


def test_the_config_itself_is_not_touched():
    config = SimpleNamespace(n_layer=2, n_embd=64, n_head=1, block_size=8)
    variants = built(config)
    assert config.n_layer == 2
    assert variants["half-width"].n_head == 1  # one head of half the size


def test_grouped_queries_and_lists_of_layers_follow():
    config = SimpleNamespace(
        num_hidden_layers=4,
        hidden_size=256,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=512,
        layer_types=["full", "sliding", "full", "sliding"],
    )
    variants = built(config)
    assert variants["half-depth"].layer_types == ["full", "sliding"]
    wide = variants["half-width"]
    assert (wide.hidden_size, wide.num_attention_heads, wide.num_key_value_heads) == (128, 4, 1)
    assert wide.intermediate_size == 256
    assert "half-sequence" not in variants


@pytest.mark.parametrize(
    "config",
    [
        SimpleNamespace(n_embd=24, n_head=3),  # heads of 4
        SimpleNamespace(n_layer=1),
        SimpleNamespace(n_layer=1, n_embd=100, n_head=3),
    ],
)
def test_nothing_is_offered_that_is_not_legal(config):
    assert built(config) == {}


def test_hugging_face_builds():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=4, n_embd=64, n_head=4, n_positions=32, vocab_size=64)
    variants = config_variants(config, transformers.GPT2LMHeadModel)
    assert set(variants) == {"half-depth", "half-width", "half-sequence"}
    assert len(variants["half-depth"]().transformer.h) == 2
    assert variants["half-width"]().transformer.wte.weight.shape == (64, 32)
    assert variants["half-sequence"]().transformer.wpe.weight.shape == (16, 64)


def test_a_batch_is_cut_along_its_sequence():
    batch = {
        "input_ids": torch.zeros(2, 8, dtype=torch.int64),
        "attention_mask": torch.ones(2, 8),
        "image": torch.ones(2, 3, 4, 4),
    }
    halved = halved_batch(batch)
    assert halved["input_ids"].shape == halved["attention_mask"].shape == (2, 4)
    assert halved["image"].shape == (2, 3, 4, 4)
