"""Rotary position embedding: which angle each channel pair turns by."""

import math

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Vector
from penstock.weights.config import ModelConfig


def frequencies(config: ModelConfig, compressed: bool) -> Vector:
    """Angles per position of the channel pairs of one layer kind.  [rope_dim / 2]

    Sliding layers turn at theta^(-2i/dim).  Layers with a compressor use their own base, stretched by YaRN, for
    everything in them; YaRN's magnitude correction is not applied in this model.
    """
    dim = config.rope_dim
    theta = config.compress_rope_theta if compressed else config.rope_theta
    pair = np.arange(0, dim, 2, dtype=np.float64)
    found = theta ** (-pair / max(dim, 1))
    if compressed and config.yarn_factor != 1.0:
        ramp = _yarn_ramp(config, dim, theta)
        found = found * (1 - ramp) + found / config.yarn_factor * ramp
    # Rounded to float32 because that is what the model was trained with; angles are then exact in float64.
    return found.astype(np.float32)


def _yarn_ramp(config: ModelConfig, dim: int, theta: float) -> NDArray[np.float64]:
    """0 where a channel keeps its frequency, 1 where it is divided by the factor.  [dim / 2]"""

    def channel(turns: float) -> float:
        """The channel pair that makes `turns` full turns over the original context."""
        return dim * math.log(config.yarn_original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(channel(config.yarn_beta_fast)), 0)
    high: float = min(math.ceil(channel(config.yarn_beta_slow)), dim - 1)
    if high == low:
        high += 0.001
    return np.clip((np.arange(dim // 2, dtype=np.float64) - low) / (high - low), 0, 1)
