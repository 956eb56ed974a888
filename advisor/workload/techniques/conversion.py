"""Parameters, buffers and batches in another floating-point type: pure bfloat16."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from advisor.workload.techniques.nf4 import NF4Weight

Model = TypeVar("Model", bound=nn.Module)


def convert_model(model: Model, dtype: torch.dtype) -> Model:
    """Every floating-point parameter and buffer as `dtype`, in place; tied ones stay tied, NF4 weights as they are.

    `copy_` into new tensors, not `Module.to`: it works on fake tensors, and where large fills are skipped it costs
    nothing.
    """
    memo: dict[int, Tensor] = {}

    def converted(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or tensor.dtype == dtype:
            return tensor
        if id(tensor) not in memo:
            new = torch.empty_like(tensor, dtype=dtype, requires_grad=False)
            new.copy_(tensor.detach())
            if isinstance(tensor, nn.Parameter):
                attributes = vars(tensor)
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
                vars(new).update(attributes)
            memo[id(tensor)] = new
        return memo[id(tensor)]

    for module in model.modules():
        if isinstance(module, NF4Weight):
            continue
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = converted(tensor)  # type: ignore[assignment]
    return model


def convert_batch(batch: Any, dtype: torch.dtype) -> Any:
    """Every floating-point tensor of the batch as `dtype`."""
    return pytree.tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, batch)
