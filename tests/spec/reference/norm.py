"""RMS norm and rotary position embedding."""

import torch
from torch import Tensor

from penstock.kernels.parts import Rotation


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    half = cos.shape[-1]
    if half == 0:
        return x
    plain, tail = x[..., : -2 * half], x[..., -2 * half :].unflatten(-1, (half, 2))
    shape = (cos.shape[0],) + (1,) * (x.dim() - 2) + (half,)  # broadcast over heads, if any
    cos, sin = cos.view(shape), sin.view(shape)
    if inverse:
        sin = -sin
    a, b = tail.unbind(-1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1)
    return torch.cat((plain, turned.flatten(-2)), dim=-1)


def angles(positions: Tensor, speed: Tensor) -> Rotation:
    angle = positions.double().unsqueeze(1) * speed.double()
    return Rotation(torch.cos(angle).float(), torch.sin(angle).float())
