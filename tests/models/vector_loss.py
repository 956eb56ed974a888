import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return self.layer(x)


def make_batch(batch_size):
    return torch.randn(batch_size, 8)


def compute_loss(model, batch):
    return F.mse_loss(model(batch), batch, reduction="none")
