"""`advisor init`: a starter model file with every hook, that assesses as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Where = Annotated[Path, typer.Argument(metavar="FILE", help="the file to write")]
Force = Annotated[bool, typer.Option("--force", help="overwrite the file")]


def init(file: Where = Path("model.py"), force: Force = False) -> int:
    """Write a starter model.py with every hook."""
    from advisor.cli.output import emit, write
    from advisor.errors import UsageError

    if file.exists() and not force:
        raise UsageError(f"{file} is there already", hint="name another file, or overwrite it with --force")
    if not file.parent.is_dir():
        raise UsageError(f"there is no folder {file.parent}")
    write(file, STARTER)
    emit(f"wrote {file}; assess it with: advisor assess {file}\n")
    return 0


STARTER = '''\
"""A starter file for `advisor assess`. Any hook may be left out: what is missing is guessed, and the guess printed."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, NUM_CLASSES = 1024, 10

# Settings the command line has not: flags and advisor.toml win over these.
ADVISOR = {
    "micro_batch": 64,  # samples per forward and backward
    "global_batch": 256,  # samples per optimizer step; held whatever the setup
    "samples": "40M",  # to train on in all; or "tokens", or "steps"
    "deadline": "5d",
}


def build_model() -> nn.Module:
    return network(depth=8)


def network(depth: int) -> nn.Module:
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, NUM_CLASSES))


def make_batch(batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One synthetic batch: any nesting of tensors, the batch dimension first."""
    return torch.randn(batch_size, WIDTH), torch.randint(0, NUM_CLASSES, (batch_size,))


def compute_loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


def variants() -> dict:
    """Smaller models to consider, by name; each a function that builds one."""
    return {"half the depth": lambda: network(depth=4)}


# Real data and quality are only needed for trials, and only if they are defined:
#
# def batches(batch_size):
#     """Yields real training batches, as make_batch shapes them."""
#
# def evaluate(model) -> float:
#     """Quality on held-out data, lower is better."""
'''
