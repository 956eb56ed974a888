"""What the rules on the learning rate answer. Apart from the rules: who reads a stored report needs none of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningRateAdvice:
    """What to do about the learning rate, in numbers and in words."""

    changed: bool  # the global batch changes
    rule: str  # "LR-15"; "LEGW" and "relative step" for optimizers with a rule of their own; "" without one
    old_lr: float | None
    new_lr: float | None
    factor: float | None  # None: no rule is known
    batch_old: int  # samples
    batch_new: int
    warmup: str
    sentence: str
    warnings: tuple[str, ...]
    companions: tuple[str, ...]  # betas, weight decay, model average, everything counted in steps
    source: str
