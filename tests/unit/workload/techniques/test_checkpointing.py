import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy

from advisor.errors import UsageError
from advisor.workload.blocks import repeated_blocks
from advisor.workload.techniques.checkpointing import checkpoint_blocks, keep_products

aten = torch.ops.aten


def stack():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))


def calls_of_tanh(model):
    calls = []
    for index, block in enumerate(model):
        block[1].register_forward_pre_hook(lambda module, args, index=index: calls.append(index))
    model(torch.ones(2, 4)).sum().backward()
    return calls


def test_chosen_blocks_run_again_in_backward_last_first():
    assert calls_of_tanh(checkpoint_blocks(stack(), every=2)) == [0, 1, 2, 3, 2, 0]


def test_blocks_stay_a_chain_and_copies_run_their_own():
    model = checkpoint_blocks(stack(), every=2)
    assert repeated_blocks(model) == repeated_blocks(stack())
    twin = copy.deepcopy(model)
    nn.init.zeros_(twin[0][0].weight)
    assert not torch.equal(twin(torch.ones(2, 4)), model(torch.ones(2, 4)))


def test_a_key_value_cache_is_switched_off():
    model = stack()
    model.config = SimpleNamespace(use_cache=True)
    assert checkpoint_blocks(model).config.use_cache is False


def test_refuses_a_model_without_blocks():
    with pytest.raises(UsageError, match="no repeated blocks"):
        checkpoint_blocks(nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("op", "args", "kept"),
    [
        (aten.mm.default, (torch.empty(8, 2), torch.empty(2, 8)), True),
        (aten.bmm.default, (torch.empty(1, 8, 2), torch.empty(1, 2, 8)), False),  # 64 scores from 32 numbers
        (aten.bmm.default, (torch.empty(1, 8, 8), torch.empty(1, 8, 2)), True),
        (aten.gelu.default, (torch.empty(2),), False),
    ],
)
def test_policy(op, args, kept):
    policy = CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
    assert keep_products(None, op, *args) is policy
