"""Which modules repeat."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from advisor.workload.blocks import repeated_blocks, signature


class Block(nn.Module):
    def __init__(self, *, layer_idx: int = 0, drop_path: float = 0.0, width: int = 4) -> None:
        super().__init__()
        self.layer_idx, self.drop_path = layer_idx, drop_path
        self.linear, self.act = nn.Linear(width, width), nn.ReLU()


class Held(nn.Module):
    """Holds what it is given, the way a model does."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def test_a_module_list_of_blocks() -> None:
    model = Held(embed=nn.Embedding(3, 4), layers=nn.ModuleList(Block(layer_idx=i) for i in range(3)))
    assert repeated_blocks(model) == [["layers.0", "layers.1", "layers.2"]]


def test_a_sequential_cut_by_another_layer() -> None:
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 4), Block(), Block(), Block(), Block(width=8))
    assert repeated_blocks(model) == [["0", "1"], ["3", "4", "5"]]


def test_layers_without_parameters_are_no_blocks() -> None:
    """The ReLUs between equal linears end a chain; a run of them is none."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.ReLU(), nn.Linear(4, 4))
    assert repeated_blocks(model) == []


def test_a_list_of_lists_gives_a_chain_for_each_position() -> None:
    """vit-pytorch: `for attention, feed_forward in self.layers`."""
    layers = nn.ModuleList(nn.ModuleList([Block(), nn.LayerNorm(4), nn.Identity()]) for _ in range(3))
    assert repeated_blocks(Held(transformer=Held(layers=layers))) == [
        [f"transformer.layers.{i}.0" for i in range(3)],
        [f"transformer.layers.{i}.1" for i in range(3)],
    ]


def test_stages_of_blocks() -> None:
    """A stage of one block is looked into."""
    stages = nn.ModuleList(
        Held(down=nn.Linear(width, width), blocks=nn.Sequential(*(Block(width=width) for _ in range(depth))))
        for width, depth in ((4, 2), (6, 3))
    )
    assert repeated_blocks(Held(stages=stages)) == [
        ["stages.0.blocks.0", "stages.0.blocks.1"],
        [f"stages.1.blocks.{i}" for i in range(3)],
    ]


def test_experts_inside_a_block_are_no_chain_of_their_own() -> None:
    def expert_block() -> nn.Module:
        return Held(router=nn.Linear(4, 2), experts=nn.ModuleList(Block() for _ in range(2)))

    model = Held(layers=nn.ModuleList(expert_block() for _ in range(2)))
    assert repeated_blocks(model) == [["layers.0", "layers.1"]]
    assert repeated_blocks(Held(only=expert_block())) == [["only.experts.0", "only.experts.1"]]


def test_a_drop_path_of_zero_launches_less() -> None:
    blocks = nn.ModuleList(Block(drop_path=rate) for rate in (0.0, 0.1, 0.2, 0.3))
    assert repeated_blocks(Held(blocks=blocks)) == [["blocks.1", "blocks.2", "blocks.3"]]


def test_shortest() -> None:
    model = nn.Sequential(Block(), Block(), nn.Linear(4, 4), Block(), Block(), Block())
    assert repeated_blocks(model, shortest=3) == [["3", "4", "5"]]


def _frozen() -> nn.Module:
    block = Block()
    block.linear.weight.requires_grad = False
    return block


def _half() -> nn.Module:
    return Block().to(torch.float16)


def _other_activation() -> nn.Module:
    block = Block()
    block.act = nn.GELU()
    return block


def _strided() -> nn.Module:
    block = Block()
    block.window = (2, 2)
    return block


@pytest.mark.parametrize("other", [lambda: Block(width=5), _frozen, _half, _other_activation, _strided])
def test_what_makes_a_block_another(other: object) -> None:
    assert signature(other()) != signature(Block(layer_idx=7))


def test_only_its_number_does_not() -> None:
    assert signature(Block(layer_idx=1)) == signature(Block(layer_idx=2))
    hash(signature(Block()))
