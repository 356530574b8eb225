"""The low-precision round trips of DeepSeek's own inference code, simulated in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor

FP8_MAX, FP4_MAX = 448.0, 6.0
FP8_FLOOR = 1e-4  # smallest magnitude a group's scale is made from
FP4_FLOOR = FP4_MAX * 2.0**-126


def _power_of_two_above(x: Tensor) -> Tensor:
    """2^ceil(log2 x), exactly: from the exponent, not from a logarithm."""
    mantissa, exponent = torch.frexp(x)  # x = mantissa · 2^exponent, mantissa in [0.5, 1)
    return torch.ldexp(torch.ones_like(x), exponent - (mantissa == 0.5).to(exponent.dtype))


def _scaled(x: Tensor, group: int, largest: float, floor: float) -> tuple[Tensor, Tensor]:
    """Groups of the last axis [.., groups, group] divided by their scale, and the scale."""
    groups = F.pad(x, (0, -x.shape[-1] % group)).unflatten(-1, (-1, group))
    scale = _power_of_two_above(groups.abs().amax(-1, keepdim=True).clamp(min=floor) / largest)
    return groups / scale, scale


def round_fp8(x: Tensor, group: int) -> Tensor:
    scaled, scale = _scaled(x, group, FP8_MAX, FP8_FLOOR)
    rounded = scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float() * scale
    return rounded.flatten(-2)[..., : x.shape[-1]]


def round_fp4(x: Tensor, group: int) -> Tensor:
    scaled, scale = _scaled(x, group, FP4_MAX, FP4_FLOOR)
    size = scaled.abs().clamp(max=FP4_MAX)
    # Steps of ½ below 2, of 1 below 4, of 2 above; torch.round takes ties to even, which is the even code.
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    rounded = torch.copysign(torch.round(size / step) * step, scaled) * scale
    return rounded.flatten(-2)[..., : x.shape[-1]]


def hadamard(x: Tensor) -> Tensor:
    dim = x.shape[-1]
    out: Tensor = x
    width = 1
    while width < dim:
        pairs: Tensor = out.unflatten(-1, (dim // (2 * width), 2, width))
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        out = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        width *= 2
    return torch.mul(out, float(dim) ** -0.5)
