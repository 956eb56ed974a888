import copy

import pytest
import torch
from torch import nn

from advisor.workload.techniques.lora import add_adapters


def stack(layers=2):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(layers)))


def test_weights_keep_their_names():
    names = set(stack().state_dict())
    adapted = set(add_adapters(stack(), rank=2, quantise=False).state_dict())
    assert names < adapted
    assert all(".lora_" in name for name in adapted - names)


def test_the_adapter_is_b_a_x():
    model = add_adapters(stack(), rank=2, quantise=False)
    layer, plain = model[0][0], stack()[0][0]
    nn.init.normal_(layer.lora_b)
    x = torch.ones(3, 8)
    torch.testing.assert_close(layer(x), plain(x) + x @ layer.lora_a.t() @ layer.lora_b.t())


@pytest.mark.parametrize("quantise", [False, True])
def test_only_adapters_get_gradients_and_copies_work(quantise):
    model = copy.deepcopy(add_adapters(stack(), rank=2, quantise=quantise))
    model(torch.ones(3, 8)).square().sum().backward()
    assert {name.rpartition(".")[2] for name, p in model.named_parameters() if p.grad is not None} == {
        "lora_a", "lora_b",
    }  # fmt: skip


def test_attention_that_reads_its_weight_itself_is_left_alone():
    blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
    adapted = {name for name, _ in add_adapters(blocks, rank=2, quantise=False).named_parameters() if "lora_a" in name}
    assert adapted == {f"{i}.linear{j}.lora_a" for i in (0, 1) for j in (1, 2)}
