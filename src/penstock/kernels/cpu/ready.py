"""What is described to the native code once: a part's weights, and where rows are remembered."""

from ctypes import Structure, addressof
from sys import getrefcount
from typing import Final

import torch
from torch import Tensor

from penstock.kernels.cpu.attention import KINDS
from penstock.kernels.cpu.stored import stored_weight
from penstock.kernels.cpu.structs import Ring
from penstock.kernels.parts import AllRows, RecentRows
from penstock.weights.tensor import Weight


def _count_of_unused() -> int:
    """What `getrefcount` says in `Ready.result` of a tensor that only the list there holds."""
    results = [object()]
    found = results[0]
    return getrefcount(found)


UNUSED: Final = _count_of_unused()


class Ready:
    """A description for the native code: where it lies (0: there is none), and what must live as long as it does.

    Also the memory of single-row results.  It is used again once nobody else holds the tensor, because making one
    takes longer than much of what happens in it.
    """

    __slots__ = ("address", "dim", "half", "kept", "ratio", "results", "width")

    def __init__(
        self, address: int, kept: object = None, half: int = 0, dim: int = 0, width: int = 0, ratio: int = 0
    ):
        self.address, self.kept = address, kept
        self.half, self.dim, self.width, self.ratio = (
            half,
            dim,
            width,
            ratio,
        )  # what it was made for, as needed
        self.results: list[Tensor | None] = [None, None]

    def result(self, number: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory for a result; of a part's results with one row each number has its own."""
        if shape[0] != 1:
            return torch.empty(shape, dtype=dtype)
        found = self.results[number]
        if found is None or getrefcount(found) > UNUSED:
            found = self.results[number] = torch.empty(shape, dtype=dtype)
        return found


NOT_NATIVE = Ready(0)


def described(structure: Structure, *kept: object, **sizes: int) -> Ready:
    return Ready(addressof(structure), (structure, *kept), **sizes)


class Place:
    """Where rows [count, width] are remembered: a ring, or all rows of a series."""

    __slots__ = ("address", "count", "data", "kind", "ring", "width")

    def __init__(self, storage: Tensor):
        self.count, self.width = storage.shape
        self.data, self.kind = storage.data_ptr(), KINDS[storage.dtype]
        self.ring = Ring(self.data, self.count, self.width, self.kind)
        self.address = addressof(self.ring)


def place_of(rows: RecentRows | AllRows) -> Place:
    found: Place | None = rows.prepared
    if found is None:
        found = rows.prepared = Place(rows.storage)
    return found


def places_of(*weights: Weight) -> list[int] | None:
    """Addresses of the weights' descriptions; None if one of them must be decoded first."""
    stored = [stored_weight(weight) for weight in weights]
    return None if None in stored else [addressof(weight) for weight in stored if weight is not None]


def at(x: Tensor, what: str) -> int:
    """Address of a contiguous float32 tensor on the CPU."""
    if x.dtype is not torch.float32 or not x.is_contiguous() or not x.is_cpu:
        raise ValueError(f"{what}: expected contiguous float32 on cpu, found {x.dtype} {list(x.shape)}")
    return x.data_ptr()
