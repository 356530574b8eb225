"""What the parts of the training model share: norms, linear maps, rotary positions."""

import math

import torch
from torch import Tensor, nn

from pocket.config import PocketConfig


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    x = x.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x if weight is None else x * weight


class Norm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms(x, self.weight, self.eps)


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
    return layer


def frequencies(c: PocketConfig, compressed: bool) -> Tensor:
    """Turning speed of each rotary pair, stretched by YaRN in layers with a compressor."""
    dim = c.rope_dim
    theta = c.compress_theta if compressed else c.rope_theta
    speed = theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if compressed:
        low, high = (
            dim * math.log(c.yarn_context / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (32.0, 1.0)
        )
        first, last = max(math.floor(low), 0), min(math.ceil(high), dim - 1)
        width = (last - first) or 0.001
        ramp = ((torch.arange(dim // 2, dtype=torch.float64) - first) / width).clamp(0, 1)
        speed = speed * (1 - ramp) + speed / c.yarn_factor * ramp
    return speed.float()


def rotate(x: Tensor, position: Tensor, speed: Tensor, sign: float = 1.0) -> Tensor:
    """x [tokens, (heads,) dim]: the last 2 · len(speed) channels turned by position · speed."""
    half = speed.numel()
    angle = position.float().unsqueeze(-1) * speed  # [tokens, half]
    cos, sin = angle.cos(), sign * angle.sin()
    if x.dim() == 3:
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    plain, tail = x[..., : -2 * half], x[..., -2 * half :].float().unflatten(-1, (half, 2))
    a, b = tail.unbind(-1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((plain.float(), turned), dim=-1)
