from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x):
        return self.layer(x)
