"""Arrays that native kernels work on: numpy's, with their address at hand, in memory that is used step after step."""

import mmap
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

WIDTHS: Final = 16  # of steps whose arrays are remembered


class Buffer:
    """An array and where it lies.  Asking numpy for an address takes longer than many a kernel."""

    __slots__ = ("address", "array")

    def __init__(self, array: NDArray[Any]):
        if not array.flags.c_contiguous:
            raise ValueError(f"expected a contiguous array, found strides {array.strides}")
        self.array = array
        self.address: int = array.ctypes.data


class Workspace:
    """Working memory of ops, by name.  What an op returns lies here and is good until the op runs again.

    A name has room for the most rows that were ever asked for.  The plan counts the rows of a chunk, so nothing is
    given back in between.  Decoding has steps of few rows, one width after another where there are drafts: what a
    width was given is at hand when it comes back.
    """

    def __init__(self) -> None:
        self._whole: dict[str, NDArray[Any]] = {}
        self._given: dict[str, dict[int, Buffer]] = {}  # by rows, as many widths as there may be few

    def take(self, name: str, rows: int, shape: tuple[int, ...], dtype: Any = np.float32) -> Buffer:
        """An array [rows, *shape], not filled.  A name always has the same shape and type."""
        given = self._given.get(name)
        if given is None:
            given = self._given[name] = {}
        buffer = given.get(rows)
        if buffer is not None:
            return buffer
        whole = self._whole.get(name)
        if whole is None or len(whole) < rows:
            whole = self._whole[name] = np.empty((rows, *shape), dtype)
            given.clear()
        elif len(given) == WIDTHS:
            del given[next(iter(given))]
        buffer = given[rows] = Buffer(whole[:rows])
        return buffer


def view(memory: mmap.mmap, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(memory, dtype, count=prod(shape), offset=offset).reshape(shape)
