"""Streams as they cross from stage to stage: 32 bits, or rounded to 16, by a device before they leave it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.base import Array, Backend
from penstock.backend.device import DeviceBackend


def leaving(backend: Backend, streams: Array, rows: int, dtype: str) -> NDArray[Any]:
    """What the next stage gets of a step of so many rows: float32, or the bits of bfloat16."""
    if dtype == "bf16" and isinstance(backend, DeviceBackend):
        return backend.host_bf16(streams, rows)
    return as_boundary(backend.host(streams)[:rows], dtype)


def arriving(backend: Backend, crossed: NDArray[Any]) -> NDArray[Any]:
    """As ops take it (`Ops.received`)."""
    return crossed if isinstance(backend, DeviceBackend) else from_boundary(crossed)


def as_boundary(streams: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """On the host."""
    if dtype == "f32":
        return streams
    rounded = torch.from_numpy(streams).to(torch.bfloat16).view(torch.uint16)
    return rounded.numpy()


def from_boundary(crossed: NDArray[Any]) -> NDArray[np.float32]:
    """The way back."""
    if crossed.dtype == np.float32:
        return crossed
    return torch.from_numpy(crossed).view(torch.bfloat16).to(torch.float32).numpy()
