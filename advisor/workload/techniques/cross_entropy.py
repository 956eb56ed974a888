"""Cross-entropy of large logits, a few rows at a time: same loss, same gradient, no second copy of the logits.

`F.cross_entropy` keeps the log-softmax for backward and allocates the gradient there: 2-3 copies of tokens * vocabulary
(MEM-4). Here forward computes loss and gradient of one chunk of rows after the other and writes the gradient over the
logits, as Liger-Kernel does (Hsu 2024, arXiv:2410.10989, section 3.2); 8 chunks as in torchtune's
`CEWithChunkedOutputLoss`. What must not happen is that somebody else still reads the logits: autograd refuses
if it saved them, a metric computed from them afterwards would read gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from advisor.errors import UsageError

NUM_CHUNKS = 8


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, ignore_index: int, mean: bool) -> Tensor:
        kept = target != ignore_index
        scale = 1 / kept.sum() if mean else torch.ones((), device=logits.device)
        gradient = logits.detach()
        loss = torch.zeros((), dtype=torch.float32, device=logits.device)
        for rows, targets, valid in zip(
            gradient.chunk(NUM_CHUNKS), target.chunk(NUM_CHUNKS), kept.chunk(NUM_CHUNKS), strict=True
        ):
            loss += _row_losses_then_gradients(rows, targets, valid, scale)
        ctx.gradient = gradient
        return loss.mul_(scale).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.gradient.mul_(gradients[0]), None, None, None


def _row_losses_then_gradients(rows: Tensor, target: Tensor, valid: Tensor, scale: Tensor) -> Tensor:
    """Sum of -log softmax(rows)[target] over the valid rows; `rows` becomes scale * (softmax - one_hot)."""
    target = target.masked_fill(~valid, 0).unsqueeze(1)
    probabilities = rows if rows.dtype == torch.float32 else rows.float()
    probabilities.sub_(probabilities.amax(1, keepdim=True))
    picked = probabilities.gather(1, target)
    total = probabilities.exp_().sum(1, keepdim=True)
    loss = ((total.log() - picked).squeeze(1) * valid).sum()
    probabilities.div_(total).scatter_add_(1, target, torch.full_like(picked, -1.0))
    probabilities.mul_(valid.unsqueeze(1) * scale)
    if probabilities is not rows:
        rows.copy_(probabilities)
    return loss


@contextlib.contextmanager
def chunked_cross_entropy() -> Iterator[None]:
    """`F.cross_entropy` and `nn.CrossEntropyLoss` work in chunks inside; refuses where none of it was used."""
    plain = functional.cross_entropy
    used = False

    def cross_entropy(
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        nonlocal used
        supported = (
            (weight, size_average, reduce, label_smoothing) == (None, None, None, 0.0)
            and reduction in ("mean", "sum")
            and (input.dim(), target.dim()) == (2, 1)
            and torch.is_grad_enabled()
            and input.requires_grad
        )
        if not supported:
            return plain(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        used = True
        loss: Tensor = _ChunkedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            input, target, ignore_index, reduction == "mean"
        )
        return loss

    functional.cross_entropy = cross_entropy
    try:
        yield
    finally:
        functional.cross_entropy = plain
    if not used:
        raise UsageError(
            "loss=chunked: the loss is not a plain F.cross_entropy(logits, labels) with integer labels",
            hint="leave loss as it is",
        )
