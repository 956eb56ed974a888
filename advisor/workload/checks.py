"""What a model, a batch size and a loss must be before anything is traced or measured. No torch at import."""

from __future__ import annotations

import dis
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from advisor.errors import UsageError, WorkloadError
from advisor.workload.failures import Origin, origin, place

if TYPE_CHECKING:
    import torch


def check_model(model: object) -> torch.nn.Module:
    """`model`, if it is a module with something to train."""
    import torch

    if not isinstance(model, torch.nn.Module):
        what = f"the class {model.__name__}" if isinstance(model, type) else f"a {type(model).__name__}"
        raise WorkloadError(f"building the model gave {what}, not an nn.Module", hint="--model 'Name(...)' builds it")
    name = type(model).__name__
    parameters = list(model.parameters())
    if not parameters:
        raise WorkloadError(f"{name} has no parameters: there is nothing to train", hint="--model names another model")
    if not any(parameter.requires_grad for parameter in parameters):
        raise WorkloadError(
            f"all {len(parameters)} parameters of {name} are frozen (requires_grad=False): there is nothing to train",
            hint="unfreeze what is trained, or name the model that trains with --model",
        )
    return model


def check_loss(loss: Any, *, made_by: Callable[..., Any] | None = None) -> torch.Tensor:
    """`loss`, if backward can start from it: one number, with a gradient. `made_by` is named where it is the user's."""
    import torch

    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(
            f"the loss is a {type(loss).__name__}, not a tensor", hint="--loss takes an expression, as in 'out[1]'"
        )
    if loss.numel() != 1:
        shape, returned_at = tuple(loss.shape), _returns_at(made_by)
        raise WorkloadError(
            f"{f'{returned_at}: ' if returned_at else ''}the loss has shape {shape}, not a scalar",
            hint="reduce it there, as in return loss.mean()" if returned_at else "reduce it: --loss '(...).mean()'",
        )
    if not loss.requires_grad:
        raise WorkloadError(
            "the loss has no gradient: it does not depend on a trainable parameter",
            hint="look for .detach(), .item(), torch.no_grad() or argmax between the model and the loss",
        )
    return loss


def _returns_at(function: Callable[..., Any] | None) -> str | None:
    """`file:line (source)` of the last `return` of a function in the user's file; None for one of ours."""
    code = getattr(function, "__code__", None)
    if code is None or origin(code.co_filename) is not Origin.USER:
        return None
    lines = [
        each.positions.lineno for each in dis.get_instructions(code) if each.opname == "RETURN_VALUE" and each.positions
    ]
    return place(code.co_filename, lines[-1] if lines and lines[-1] else code.co_firstlineno)


def check_batch_size(size: int, *, name: str = "micro_batch_size") -> int:
    if size < 1:
        raise UsageError(f"{name} is {size}; it must be at least 1")
    return size
