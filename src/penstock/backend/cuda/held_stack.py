"""Some experts of a layer on the card, computed for another machine: the products of many rows, without a router."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.base import Bytes, Vector
from penstock.backend.cuda.device import translated
from penstock.backend.cuda.placed import CudaExpertStack
from penstock.backend.cuda.prefill_products import (
    MOST,
    HalfRows,
    Items,
    make_halves,
    multiply,
    multiply_swiglu,
)
from penstock.backend.device import HeldStack
from penstock.weights.tensor import TensorInfo


def tiles_of(numbers: NDArray[np.int64], most: int) -> NDArray[np.int32]:
    """Ascending numbers of experts → [tiles, 3]: expert, first item, count; those of one expert as even as can be.

    >>> tiles_of(np.array([0, 2, 2, 2]), 2).tolist()
    [[0, 0, 1], [2, 1, 2], [2, 3, 1]]
    """
    found = []
    for expert, first, count in zip(*np.unique(numbers, return_index=True, return_counts=True), strict=True):
        each = -(-count // -(-count // most))
        found += [(expert, first + at, min(each, count - at)) for at in range(0, count, each)]
    return np.array(found, np.int32).reshape(-1, 3)


class CudaHeldStack(HeldStack):
    def __init__(self, stack: CudaExpertStack):
        assert stack.gate_up is not None
        assert stack.down is not None
        self._stack, self._gate_up, self._down = stack, stack.gate_up, stack.down

    def place(self, part: int, number: int, info: TensorInfo, raw: Bytes, scale: Bytes | None = None) -> None:
        with translated("experts"):
            self._stack.place(part, number, info, raw, scale)

    def terms(self, x: Vector, pairs: NDArray[np.int64], limit: float) -> Vector:
        order = np.argsort(pairs[:, 1], kind="stable")
        rows, numbers = pairs[order].T
        found: Vector = np.empty((len(pairs), self._down.rows), np.float32)
        if not len(pairs):
            return found
        with translated("experts of a worker"):
            image = HalfRows.empty(*x.shape)
            make_halves(_on_card(x), image)
            tiles = tiles_of(numbers, MOST)
            by_expert = (_on_card(tiles), _on_card(np.array([len(tiles)], np.int32)))
            acts = HalfRows.empty(len(pairs), self._gate_up.rows)
            multiply_swiglu(
                self._gate_up, image, acts, limit, Items(*by_expert, _on_card(rows.astype(np.int32)))
            )
            out = torch.empty(len(pairs), self._down.rows, device="cuda")
            ones = torch.ones(len(pairs), device="cuda")
            multiply([self._down], acts, [out], items=Items(*by_expert, None, ones))
            found[order] = out.cpu().numpy()
        return found


def _on_card(array: NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


def kinds_of(experts: Sequence[Sequence[TensorInfo]]) -> str:
    """Types of gate, up and down, for people."""
    return ", ".join(dict.fromkeys(info.kind.name for info in experts[0]))
