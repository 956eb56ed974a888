"""Workloads that run for real in milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from advisor.workload.spec import Workload


class Attention(nn.Module):
    """Scores written out, as many model files have it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        shares = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return self.proj((shares @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, *, width: int, heads: int, layers: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def _adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def gpt(
    *, width: int = 32, heads: int = 2, layers: int = 4, vocabulary: int = 256, length: int = 64, batch: int = 4
) -> Workload:
    def build_model() -> nn.Module:
        torch.manual_seed(0)
        return GPT(width=width, heads=heads, layers=layers, vocabulary=vocabulary, length=length)

    def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.arange(size * length).view(size, length) * 7 % vocabulary
        return tokens, (tokens + 1) % vocabulary

    return Workload(
        build_model=build_model,
        make_batch=make_batch,
        compute_loss=lambda model, batch: model(*batch),
        make_optimizer=_adamw,
        name="GPT",
    ).with_execution(micro_batch_size=batch)


def mlp(*, width: int = 128, layers: int = 4, batch: int = 16) -> Workload:
    """Parameters outweigh activations."""

    def build_model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)))

    def compute_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        return (model(batch) - batch.flip(1)).square().mean()

    return Workload(
        build_model=build_model,
        make_batch=lambda size: torch.linspace(-1, 1, size * width).view(size, width),
        compute_loss=compute_loss,
        make_optimizer=_adamw,
        name="MLP",
    ).with_execution(micro_batch_size=batch)


def convnet(*, channels: int = 8, batch: int = 2) -> Workload:
    def build_model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    return Workload(
        build_model=build_model,
        make_batch=lambda size: torch.ones(size, 3, 16, 16),
        compute_loss=lambda model, batch: model(batch).square().mean(),
        make_optimizer=_adamw,
        name="convnet",
    ).with_execution(micro_batch_size=batch)


def losses(workload: Workload, *, steps: int) -> list[float]:
    """The losses of the first steps, run for real."""
    from advisor.workload.step import prepare, run_step

    prepared = prepare(workload)
    return [run_step(prepared).item() for _ in range(steps)]
