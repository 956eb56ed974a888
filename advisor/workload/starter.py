"""The starter `model.py` of `advisor init`: every hook, on a model that assesses as it stands. No torch."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import UsageError

STARTER = '''\
"""A small language model, and what advisor wants to know about its training. Replace each part by your own.

    advisor assess model.py --device h100-sxm5-80gb
"""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CONTEXT = 32_000, 1024

# How long the job is. Flags win over these.
ADVISOR = {"global_batch": 512, "samples": "10M", "lr": 3e-4, "deadline": "7d"}


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class LanguageModel(nn.Module):
    def __init__(self, width: int = 512, depth: int = 8, num_heads: int = 8) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, num_heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_model():
    return LanguageModel()


def make_batch(batch_size):
    """One synthetic batch: shapes, dtypes and ranges are what counts."""
    tokens = torch.randint(0, VOCABULARY, (batch_size, CONTEXT + 1))
    return tokens[:, :-1], tokens[:, 1:]


def compute_loss(model, batch):
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)


def variants():
    """Smaller models you would accept if the big one does not pay."""
    return {"half depth": lambda: LanguageModel(depth=4), "half width": lambda: LanguageModel(width=256, num_heads=4)}


# For trials of quality, on your own data:
# def batches(batch_size): yields batches like make_batch's, without end
# def evaluate(model): returns a float, lower is better
'''


def write_starter(path: Path, *, force: bool = False) -> None:
    """Write the starter file; an existing one only with `force`.

    Raises:
        UsageError: it exists, or its folder does not.
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="--force replaces it; or name another file")
    if not path.parent.is_dir():
        raise UsageError(f"no such folder: {path.parent}")
    path.write_text(STARTER, encoding="utf-8")
