"""A U-Net: its sizes are arguments, and this file trains nothing by itself."""

import torch
from torch import nn


class DoubleConv(nn.Sequential):
    def __init__(self, in_channels, out_channels):
        super().__init__(
            nn.Conv2d(in_channels, out_channels, 3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width=16):
        super().__init__()
        self.inc = DoubleConv(n_channels, width)
        self.down = nn.ModuleList(DoubleConv(width * 2**i, width * 2 ** (i + 1)) for i in range(3))
        self.up = nn.ModuleList(nn.ConvTranspose2d(width * 2 ** (i + 1), width * 2**i, 2, 2) for i in range(3))
        self.merge = nn.ModuleList(DoubleConv(width * 2 ** (i + 1), width * 2**i) for i in range(3))
        self.pool = nn.MaxPool2d(2)
        self.outc = nn.Conv2d(width, n_classes, 1)

    def forward(self, x):
        skips = [self.inc(x)]
        for down in self.down:
            skips.append(down(self.pool(skips[-1])))
        x = skips.pop()
        for i in reversed(range(3)):
            x = self.merge[i](torch.cat([skips.pop(), self.up[i](x)], dim=1))
        return self.outc(x)


def small_unet():
    return UNet(n_channels=1, n_classes=2, width=8)
