"""LightningModule: its `training_step` is the loss, its `configure_optimizers` the optimizer. Recognised by name.

nanoGPT and its kin have a method `configure_optimizers` with other arguments; only a LightningModule's counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import WorkloadError

if TYPE_CHECKING:
    import torch


def training_step(model: Any, batch: Any) -> torch.Tensor:
    """The loss of `training_step(batch, 0)`, as the Trainer takes it; logging is left out."""
    import torch

    if not getattr(model, "automatic_optimization", True):
        raise WorkloadError(
            f"{type(model).__name__} optimises manually: its training_step returns no loss to differentiate",
            hint="give the loss of one of its networks: --loss 'EXPR'",
        )
    without_logging(model)
    count = len(inspect.signature(model.training_step).parameters)
    result = model.training_step(*(batch, 0)[:count])
    loss = result.get("loss") if isinstance(result, Mapping) else result
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(
            f"{type(model).__name__}.training_step returned {type(result).__name__}, not a loss",
            hint="return the loss, or a dict that holds it as 'loss'",
        )
    return loss


def without_logging(model: Any) -> None:
    """Without a Trainer `log` has nowhere to go, and metrics look at values that a trace does not have."""
    import torch

    for name in ("log", "log_dict"):
        setattr(model, name, lambda *args, **options: None)
    for module in model.modules():
        if any(base.__name__ == "Metric" for base in type(module).__mro__):
            module.forward = module.compute = lambda *args, **options: torch.zeros(())
            module.update = module.reset = lambda *args, **options: None


def only_optimizer(configured: Any, name: str) -> torch.optim.Optimizer:
    """The one optimizer out of what Lightning accepts: itself, a dict, a list, or (optimizers, schedulers)."""
    import torch

    if isinstance(configured, tuple) and len(configured) == 2 and isinstance(configured[0], list | tuple):
        configured = configured[0]
    found = list(configured) if isinstance(configured, list | tuple) else [configured]
    optimizers = [item.get("optimizer") if isinstance(item, Mapping) else item for item in found]
    if len(optimizers) != 1 or not isinstance(optimizers[0], torch.optim.Optimizer):
        raise WorkloadError(
            f"{name}.configure_optimizers() returns {len(optimizers)} optimizers; one step has one",
            hint="say which: --optimizer 'torch.optim.AdamW(model.parameters(), lr=...)'",
        )
    return optimizers[0]
