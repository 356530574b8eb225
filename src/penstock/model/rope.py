"""Rotary position embedding: which angle each channel pair turns by."""

import math

import torch
from torch import Tensor

from penstock.kernels.ops import SmallOps
from penstock.kernels.parts import Rotation
from penstock.weights.config import ModelConfig


class Frequencies:
    """Turning speeds of the channel pairs of one layer kind.

    Sliding layers turn at theta^(-2i/dim).  Layers with a compressor use their own base, stretched by YaRN, for
    everything in them; YaRN's magnitude correction is not applied in this model.
    """

    def __init__(self, config: ModelConfig, compressed: bool):
        dim = config.rope_dim
        theta = config.compress_rope_theta if compressed else config.rope_theta
        pair = torch.arange(0, dim, 2, dtype=torch.float64)
        speed = theta ** (-pair / max(dim, 1))
        if compressed and config.yarn_factor != 1.0:
            ramp = _yarn_ramp(config, dim, theta)
            speed = speed * (1 - ramp) + speed / config.yarn_factor * ramp
        # Rounded to float32 because that is what the model was trained with; angles are then exact in float64.
        self.speed = speed.float()  # [dim / 2]

    def rotation(self, ops: SmallOps, positions: Tensor) -> Rotation:
        """positions [rows] → cos, sin [rows, dim / 2]"""
        return ops.angles(positions, self.speed)


def _yarn_ramp(config: ModelConfig, dim: int, theta: float) -> Tensor:
    """0 where a channel keeps its speed, 1 where it is divided by the factor.  [dim / 2]"""

    def channel(turns: float) -> float:
        """The channel pair that makes `turns` full turns over the original context."""
        return dim * math.log(config.yarn_original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(channel(config.yarn_beta_fast)), 0)
    high: float = min(math.ceil(channel(config.yarn_beta_slow)), dim - 1)
    if high == low:
        high += 0.001
    return ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
