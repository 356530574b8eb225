"""RMS norm and rotary position embedding."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.spec.linear import vector


def rms_norm(x: Tensor, weight: NDArray[np.float32] | None, eps: float) -> Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * vector(weight)


def angles(positions: Tensor, frequencies: NDArray[np.float32]) -> Tensor:
    """[rows, pairs]"""
    return positions.double()[:, None] * vector(frequencies)


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Turns adjacent pairs of the last channels of x [rows, …, dim] by angle [rows, pairs]; the others stay."""
    pairs = angle.shape[1]
    plain, tail = (
        x[..., : x.shape[-1] - 2 * pairs],
        x[..., x.shape[-1] - 2 * pairs :].unflatten(-1, (pairs, 2)),
    )
    angle = angle.view(len(x), *(1,) * (x.dim() - 2), pairs)
    a, b = tail.unbind(-1)
    turned = torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), dim=-1)
    return torch.cat((plain, turned.flatten(-2)), dim=-1)
