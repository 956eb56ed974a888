from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return self.second(self.first(x))
