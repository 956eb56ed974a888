"""Low-rank adapters on the linear layers of the repeated blocks; everything else is frozen.

h = W x + B A x with A of r x in, B of out x r: r * (in + out) trained parameters a matrix (MEM-7). Hu 2021, LoRA,
arXiv:2106.09685; alpha is set to r as in its section 4.1, so the scale is 1. Adapting every linear layer of a block,
not only the attention's, is what QLoRA found to be needed (arXiv:2305.14314, section 4).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from advisor.errors import UsageError
from advisor.workload.blocks import repeated_blocks
from advisor.workload.techniques.nf4 import NF4Weight, frozen_linear

Model = TypeVar("Model", bound=nn.Module)


def add_adapters(model: Model, *, rank: int, quantise: bool) -> Model:
    """Adapters of `rank` in place, the rest frozen; with `quantise` the adapted weights are stored as NF4."""
    blocks = [model.get_submodule(name) for chain in repeated_blocks(model) for name in chain]
    layers = [layer for block in blocks for layer in _linears(block)]
    if not layers:
        raise UsageError("lora: the model has no repeated blocks with linear layers", hint="leave lora at 'none'")
    model.requires_grad_(False)
    for layer in layers:
        _adapt(layer, rank=rank, quantise=quantise)
    return model


def _linears(block: nn.Module) -> list[nn.Module]:
    """`nn.Linear` (not subclasses: `nn.MultiheadAttention` reads the weight of its own) and Hugging Face's `Conv1D`."""
    return [m for m in block.modules() if type(m) is nn.Linear or _is_transposed(m)]


def _is_transposed(layer: nn.Module) -> bool:
    return type(layer).__name__ == "Conv1D" and type(layer).__module__ == "transformers.pytorch_utils"


def _adapt(layer: nn.Module, *, rank: int, quantise: bool) -> None:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    transposed = _is_transposed(layer)
    num_inputs, num_outputs = weight.shape if transposed else reversed(weight.shape)
    lora_a = torch.empty(rank, num_inputs, dtype=weight.dtype, device=weight.device)
    nn.init.kaiming_uniform_(lora_a, a=math.sqrt(5))
    layer.lora_a = nn.Parameter(lora_a)
    layer.lora_b = nn.Parameter(torch.zeros(num_outputs, rank, dtype=weight.dtype, device=weight.device))
    if quantise:
        del layer.weight
        layer.weight = NF4Weight(weight)
    base: Any = type(layer)
    layer.__class__ = _adapted(base, quantised=quantise, transposed=transposed)


@cache
def _adapted(base: Any, *, quantised: bool, transposed: bool) -> Any:
    """A subclass with the same name and parameters whose forward adds the adapter."""

    def forward(self: Any, input: Tensor) -> Any:
        if quantised:
            output = frozen_linear(input, self.weight, self.bias, transposed=transposed)
        else:
            output = base.forward(self, input)
        return output + nn.functional.linear(nn.functional.linear(input, self.lora_a), self.lora_b)

    return type(base.__name__, (base,), {"forward": forward})
