"""Streams of the model on their way from one stage to the next."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def as_boundary(streams: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Streams as they cross from stage to stage."""
    if dtype == "f32":
        return streams
    rounded = torch.from_numpy(streams).to(torch.bfloat16).view(torch.uint16)
    return rounded.numpy()


def from_boundary(crossed: NDArray[Any]) -> NDArray[np.float32]:
    """The way back."""
    if crossed.dtype == np.float32:
        return crossed
    return (crossed.astype(np.uint32) << 16).view(np.float32)
