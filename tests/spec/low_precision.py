"""The round trips through FP8 and FP4 of DeepSeek's own inference code."""

import torch
import torch.nn.functional as F
from torch import Tensor

LINEAR_GROUP = 128  # channels that share a scale in the input of a linear
FP8_MAX, FP4_MAX = 448.0, 6.0
FP8_FLOOR = 1e-4  # smallest magnitude that a group's scale is made from
FP4_FLOOR = FP4_MAX * 2.0**-126


def round_fp8(x: Tensor, group: int) -> Tensor:
    """e4m3, with one power-of-two scale per `group` channels"""
    scaled, scale = _scaled(x, group, FP8_MAX, FP8_FLOOR)
    rounded = scaled.float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).double() * scale
    return rounded.flatten(-2)[..., : x.shape[-1]]


def round_fp4(x: Tensor, group: int) -> Tensor:
    """e2m1, with one power-of-two scale per `group` channels"""
    scaled, scale = _scaled(x, group, FP4_MAX, FP4_FLOOR)
    size = scaled.abs().clamp(max=FP4_MAX)
    # Steps of ½ below 2, of 1 below 4, of 2 above; torch.round takes ties to even, which is the even code.
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    rounded = torch.copysign(torch.round(size / step) * step, scaled) * scale
    return rounded.flatten(-2)[..., : x.shape[-1]]


def round_rows(rows: Tensor, rope: int) -> Tensor:
    """Key/value rows keep their rotary channels, the last `rope`, and lose precision in the others."""
    plain = rows.shape[-1] - rope
    return torch.cat((round_fp8(rows[..., :plain], 64), rows[..., plain:]), dim=-1) if plain else rows


def hadamard(x: Tensor) -> Tensor:
    """The normalised Walsh–Hadamard transform of the last axis, a power of two"""
    dim, width = x.shape[-1], 1
    while width < dim:
        a, b = x.unflatten(-1, (-1, 2, width)).unbind(-2)
        x = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        width *= 2
    return torch.mul(x, float(dim) ** -0.5)


def _scaled(x: Tensor, group: int, largest: float, floor: float) -> tuple[Tensor, Tensor]:
    """Groups of the last axis […, groups, group] divided by their scale, and the scale."""
    groups = F.pad(x, (0, -x.shape[-1] % group)).unflatten(-1, (-1, group))
    wanted = groups.abs().amax(-1, keepdim=True).clamp(min=floor) / largest
    mantissa, exponent = torch.frexp(
        wanted
    )  # from the exponent, not from a logarithm: powers of two are exact
    scale = torch.ldexp(torch.ones_like(wanted), exponent - (mantissa == 0.5).to(exponent.dtype))
    return groups / scale, scale
