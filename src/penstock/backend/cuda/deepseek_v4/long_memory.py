"""Working memory of long steps."""

from math import prod

import torch

from penstock.backend.base import Vector
from penstock.backend.cuda.launch import module
from penstock.backend.cuda.layouts import CELL
from penstock.backend.cuda.placed import vector
from penstock.backend.cuda.prefill_products import HalfRows
from penstock.backend.cuda.states import CudaStates


class LongMemory:
    """Working memory by name, as large as the longest step so far; layers take turns with it."""

    def __init__(self, pool: CudaStates):
        self.pool = pool
        self.expected = False  # there will be long steps
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._frequencies: dict[int, tuple[Vector, torch.Tensor]] = {}  # by identity

    def prepare(self, expected: bool) -> None:
        """Begins to compile what every long step needs, if there will be any."""
        self.expected = expected
        for source in ("rows", "hyper", "state", "indexer", "attention") if expected else ():
            module(f"prefill_{source}.cu")

    def clear(self) -> None:
        """Forgets what steps have worked with."""
        self._buffers.clear()

    def take(
        self, name: str, *shape: int, dtype: torch.dtype = torch.float32, zeros: bool = False
    ) -> torch.Tensor:
        """zeros: what nobody writes is zero"""
        key, size = (name, dtype), prod(shape)
        if key not in self._buffers or self._buffers[key].numel() < size:
            self._buffers.pop(key, None)
            make = torch.zeros if zeros else torch.empty
            self._buffers[key] = make(size, dtype=dtype, device="cuda")
        return self._buffers[key][:size].view(shape)

    def halves(self, name: str, rows: int, width: int, planes: int = 1) -> HalfRows:
        columns = -(-width // CELL) * CELL
        scales = self.take(f"{name} scales", rows)
        # Products read whole cells, and behind the last column nobody writes.
        halves = self.take(name, planes, rows, columns, dtype=torch.float16, zeros=columns > width)
        return HalfRows(halves, scales)

    def frequencies(self, values: Vector) -> torch.Tensor:
        if id(values) not in self._frequencies:
            self._frequencies[id(values)] = (values, vector(values))
        return self._frequencies[id(values)][1]
