from torch import nn


class Net(nn.Module)
    pass
