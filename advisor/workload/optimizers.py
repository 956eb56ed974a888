"""The optimizer: a name, an expression, or AdamW where nothing is said. No torch at import."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from advisor.errors import UsageError, WorkloadError
from advisor.workload.expressions import parse
from advisor.workload.parts import Part
from advisor.workload.spec import Guess
from advisor.workload.target import OPTIMIZERS

if TYPE_CHECKING:
    import torch


def given_optimizer(text: str, scope: Mapping[str, Any]) -> Part:
    """`--optimizer`: a name with torch's own defaults, or an expression of `model`."""
    if text.lower() in OPTIMIZERS:
        return named_optimizer(text.lower())
    expression = parse(text, flag="--optimizer", scope=scope)
    if text.isidentifier() and text not in scope:
        close = difflib.get_close_matches(text.lower(), OPTIMIZERS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(OPTIMIZERS)}, or an expression of `model`"
        raise UsageError(f"--optimizer {text}: no such optimizer", hint=hint)

    def make_optimizer(model: Any) -> torch.optim.Optimizer:
        return checked(expression(model=model), f"--optimizer {text}")

    return Part(function=make_optimizer, label=text)


def named_optimizer(name: str, *, guess: Guess | None = None) -> Part:
    import torch

    kind = next(value for key, value in vars(torch.optim).items() if key.lower() == name and isinstance(value, type))

    def make_optimizer(model: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = kind([p for p in model.parameters() if p.requires_grad])
        return optimizer

    return Part(function=make_optimizer, label=f"torch.optim.{kind.__name__}, torch's defaults", guess=guess)


def assumed_optimizer(why: str) -> Part:
    guess = Guess(what="optimizer", chosen="torch.optim.AdamW", why=why, flag="--optimizer")
    return named_optimizer("adamw", guess=guess)


def checked(optimizer: Any, origin: str) -> torch.optim.Optimizer:
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(
            f"{origin} gave a {type(optimizer).__name__}, not a torch optimizer",
            hint="as in --optimizer 'torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)'",
        )
    return optimizer
