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
    attach_trainer(model)
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


class _Nowhere:
    """A logger that takes everything and does nothing: `self.logger.experiment.add_scalar(...)`."""

    def __getattr__(self, name: str) -> _Nowhere:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **options: object) -> _Nowhere:
        return self


class StandInTrainer:
    """What models ask their Trainer: one process, at its first step. None of it changes what a step allocates."""

    # Lightning trains 1000 epochs where nobody says how many; schedulers only need a number above zero.
    max_epochs = estimated_stepping_batches = 1000
    max_steps = -1
    num_training_batches = accumulate_grad_batches = 1
    world_size = num_devices = num_nodes = 1
    current_epoch = global_step = global_rank = local_rank = 0
    training = is_global_zero = True
    sanity_checking = is_last_batch = False
    gradient_clip_val = None
    lr_scheduler_configs: tuple[object, ...] = ()
    logger = _Nowhere()
    loggers: tuple[object, ...] = (logger,)

    def print(self, *args: object, **options: object) -> None:
        """A step prints nothing."""


_TRAINER = StandInTrainer()  # some versions of Lightning hold it weakly


def attach_trainer(model: Any) -> None:
    """`self.trainer` for a model that no Trainer runs: learning-rate schedules ask it for the number of steps."""
    if getattr(model, "_trainer", None) is None:
        model.trainer = _TRAINER


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
