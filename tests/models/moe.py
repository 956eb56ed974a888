"""A mixture of experts with dense routing: every expert sees every token, weighted by its gate."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class MoEConfig:
    vocab_size: int = 256
    max_seq_len: int = 32
    dim: int = 32
    num_experts: int = 4
    num_layers: int = 2


class Expert(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w1, self.w2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)))


class MoELayer(nn.Module):
    def __init__(self, config: MoEConfig):
        super().__init__()
        self.norm = nn.LayerNorm(config.dim)
        self.gate = nn.Linear(config.dim, config.num_experts)
        self.experts = nn.ModuleList(Expert(config.dim) for _ in range(config.num_experts))

    def forward(self, x):
        h = self.norm(x)
        weights = self.gate(h).softmax(dim=-1)
        mixed = torch.stack([expert(h) for expert in self.experts], dim=-1) @ weights.unsqueeze(-1)
        return x + mixed.squeeze(-1), weights.mean(dim=(0, 1)).square().sum()


class MoETransformer(nn.Module):
    def __init__(self, config: MoEConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(MoELayer(config) for _ in range(config.num_layers))
        self.head = nn.Linear(config.dim, config.vocab_size)

    def forward(self, input_ids, attention_mask=None, labels=None):
        x, balance = self.tokens(input_ids), 0.0
        for layer in self.layers:
            x, aux = layer(x)
            balance = balance + aux
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.01 * balance
        return {"loss": loss, "logits": logits}
