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


class Arriving:
    """The way back, to memory that is used again for the next streams: to get new memory takes longer than to fill
    it."""

    def __init__(self) -> None:
        self._room = np.empty(0, np.float32)

    def __call__(self, crossed: NDArray[Any]) -> NDArray[np.float32]:
        """Good until the next ones come.  What has not been rounded is left as it is."""
        if crossed.dtype != np.uint16:
            return crossed
        if self._room.size < crossed.size:
            self._room = np.empty(crossed.size, np.float32)
        found = self._room[: crossed.size].reshape(crossed.shape)
        np.left_shift(crossed, 16, out=found.view(np.uint32), dtype=np.uint32)
        return found
