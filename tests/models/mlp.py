"""A multilayer perceptron on tabular data, with every hook."""

import torch
import torch.nn.functional as F
from torch import nn

NUM_FEATURES = 64
NUM_CLASSES = 10

ADVISOR = {"global_batch": 256, "samples": "1M", "lr": 1e-3}


class MLP(nn.Module):
    def __init__(self, width=256, depth=3):
        super().__init__()
        layers = [nn.Linear(NUM_FEATURES, width), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, NUM_CLASSES))

    def forward(self, x):
        return self.layers(x)


def build_model():
    return MLP()


def make_batch(batch_size):
    return torch.randn(batch_size, NUM_FEATURES), torch.randint(0, NUM_CLASSES, (batch_size,))


def compute_loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def make_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def variants():
    return {"half width": lambda: MLP(width=128), "two layers": lambda: MLP(depth=2)}


def batches(batch_size):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(NUM_FEATURES, NUM_CLASSES, generator=generator)
    while True:
        x = torch.randn(batch_size, NUM_FEATURES, generator=generator)
        yield x, (x @ weights).argmax(dim=1)


def evaluate(model):
    with torch.no_grad():
        return float(compute_loss(model, next(batches(256))))
