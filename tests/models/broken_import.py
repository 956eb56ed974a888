import torch

import no_such_package_of_ours


class Net(torch.nn.Module):
    layer = no_such_package_of_ours.Layer
