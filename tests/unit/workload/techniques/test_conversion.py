import torch
from torch import nn

from advisor.workload.techniques.conversion import convert_batch, convert_model
from advisor.workload.techniques.nf4 import NF4Weight


def test_converts_in_place_and_keeps_what_is_tied_frozen_or_marked():
    model = nn.Module()
    model.embedding, model.head = nn.Embedding(4, 4), nn.Linear(4, 4)
    model.head.weight = model.embedding.weight
    model.head.bias.requires_grad_(False)
    model.embedding.weight.no_decay = True
    model.register_buffer("mean", torch.full((2,), 1.5))
    model.register_buffer("count", torch.tensor(3))
    convert_model(model, torch.bfloat16)
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.dtype == model.mean.dtype == torch.bfloat16
    assert model.head.weight.no_decay
    assert not model.head.bias.requires_grad
    assert torch.equal(model.mean, torch.full((2,), 1.5, dtype=torch.bfloat16))
    assert model.count.dtype == torch.int64


def test_leaves_quantised_weights_alone():
    model = nn.Sequential(NF4Weight(torch.ones(64)))
    convert_model(model, torch.bfloat16)
    assert model[0].scale_scales.dtype == torch.float32


def test_converts_the_floating_part_of_a_batch():
    batch = convert_batch({"image": torch.ones(2), "label": [torch.tensor([1])], "name": "x"}, torch.bfloat16)
    assert batch["image"].dtype == torch.bfloat16
    assert batch["label"][0].dtype == torch.int64
    assert batch["name"] == "x"
