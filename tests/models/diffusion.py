"""A denoising diffusion model whose way in is a method, not forward."""

import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, channels=3, width=32):
        super().__init__()
        self.time = nn.Linear(1, width)
        self.inc = nn.Conv2d(channels, width, 3, padding=1)
        self.mid = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.outc = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x, t):
        h = self.inc(x) + self.time(t[:, None].float())[:, :, None, None]
        return self.outc(h + self.mid(h))


class GaussianDiffusion(nn.Module):
    def __init__(self, num_steps=1000):
        super().__init__()
        self.denoiser = Denoiser()
        self.num_steps = num_steps
        betas = torch.linspace(1e-4, 0.02, num_steps)
        self.register_buffer("alphas_bar", torch.cumprod(1 - betas, dim=0))

    def training_loss(self, x):
        t = torch.randint(0, self.num_steps, (x.size(0),), device=x.device)
        a = self.alphas_bar[t][:, None, None, None]
        noise = torch.randn_like(x)
        return F.mse_loss(self.denoiser(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
