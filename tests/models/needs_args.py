"""A configuration with fields that only the user knows."""

from dataclasses import dataclass

from torch import nn


@dataclass
class TinyConfig:
    vocab_size: int
    dim: int = 32


class Tiny(nn.Module):
    def __init__(self, config: TinyConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.head = nn.Linear(config.dim, config.vocab_size)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))

    @classmethod
    def from_name(cls, name):
        return cls(TinyConfig(vocab_size={"small": 100}[name]))
