"""What all block decoders share: their form, and the unpacking of bit fields.

A format is a packed numpy record (the block's bytes, field by field) and a function that decodes an array
of such records.  Records may lie at any address, so fields wider than a byte are copied before use.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Blocks = NDArray[np.void]


class BlockFormat(NamedTuple):
    """`decode(blocks, out)` writes blocks [n] of `layout` to out, a contiguous [n, elements per block]."""

    layout: np.dtype[Any]
    decode: Callable[[Blocks, Floats], None]


def widen(halves: NDArray[Any]) -> Floats:
    """float16 block scales as float32, which is what all arithmetic below uses."""
    return halves.astype(np.float32)


def bit_planes(packed: Bytes, width: int) -> Bytes:
    """Fields of `width` bits as bytes: packed [n, w] -> [8 / width, n, w], plane 0 from the lowest bits.

    w must be a multiple of 8: the shifts run over eight bytes at a time, which is why planes come first.
    """
    words = np.ascontiguousarray(packed).reshape(-1).view(np.uint64)
    mask = np.uint64(0x0101010101010101 * ((1 << width) - 1))
    planes = np.empty((8 // width, words.size), np.uint64)
    for plane, row in enumerate(planes):
        # A shift moves bits of the neighbouring byte in at the top; the mask drops them again.
        np.right_shift(words, np.uint64(plane * width), out=row)
    planes &= mask
    return planes.view(np.uint8).reshape(8 // width, *packed.shape)


def fields(packed: NDArray[Any], shifts: tuple[int, ...], mask: int) -> NDArray[Any]:
    """`packed >> shift & mask` for every shift, along a new last axis; for the few bytes of scales."""
    unpacked: NDArray[Any] = packed[..., None] >> np.array(shifts, packed.dtype)
    unpacked &= packed.dtype.type(mask)
    return unpacked


class NibbleTable:
    """Sixteen values, looked up for both nibbles of a byte at once."""

    def __init__(self, values: tuple[float, ...]) -> None:
        byte = np.arange(256)
        self._low: Floats = np.array(values, np.float32)[byte & 15]
        self._high: Floats = np.array(values, np.float32)[byte >> 4]

    def expand(self, packed: Bytes, out: Floats) -> None:
        """packed [..., w] -> out [..., 2, w]: the low nibbles' values, then the high nibbles' values."""
        index = packed.astype(np.intp)
        out[..., 0, :] = np.take(self._low, index, mode="clip")
        out[..., 1, :] = np.take(self._high, index, mode="clip")
