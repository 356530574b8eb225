"""Blocks of 32 elements with one float16 scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

Element i < 16 is the low nibble of byte i, element i + 16 its high nibble.  The five-bit formats keep the
fifth bit of element i in bit i of `high`.  Formats ending in _1 add a minimum `m`, the others are
symmetric around their middle code.
"""

import numpy as np

from penstock.weights import types
from penstock.weights.quants.block import BlockFormat, Blocks, Bytes, Floats, bit_planes, widen

Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", 16)])
Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)])
Q5_0 = np.dtype([("d", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "u1", 4), ("q", "u1", 16)])
Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", 32)])


def _four_bits(packed: Bytes) -> Bytes:
    """packed [n, 16] -> codes [n, 32]"""
    return np.concatenate(bit_planes(packed, 4), axis=1)


def _five_bits(blocks: Blocks) -> Bytes:
    """-> codes [n, 32]"""
    fifth = np.unpackbits(np.ascontiguousarray(blocks["high"]), axis=1, bitorder="little")  # [n, 32]
    fifth <<= 4
    fifth |= _four_bits(blocks["q"])
    return fifth


def _centred(codes: Bytes, centre: int, blocks: Blocks, out: Floats) -> None:
    out[...] = codes
    out -= np.float32(centre)
    out *= widen(blocks["d"])[:, None]


def _with_minimum(codes: Bytes, blocks: Blocks, out: Floats) -> None:
    out[...] = codes
    out *= widen(blocks["d"])[:, None]
    out += widen(blocks["m"])[:, None]


def decode_q4_0(blocks: Blocks, out: Floats) -> None:
    _centred(_four_bits(blocks["q"]), 8, blocks, out)


def decode_q4_1(blocks: Blocks, out: Floats) -> None:
    _with_minimum(_four_bits(blocks["q"]), blocks, out)


def decode_q5_0(blocks: Blocks, out: Floats) -> None:
    _centred(_five_bits(blocks), 16, blocks, out)


def decode_q5_1(blocks: Blocks, out: Floats) -> None:
    _with_minimum(_five_bits(blocks), blocks, out)


def decode_q8_0(blocks: Blocks, out: Floats) -> None:
    out[...] = blocks["q"]
    out *= widen(blocks["d"])[:, None]


FORMATS = {
    types.Q4_0: BlockFormat(Q4_0, decode_q4_0),
    types.Q4_1: BlockFormat(Q4_1, decode_q4_1),
    types.Q5_0: BlockFormat(Q5_0, decode_q5_0),
    types.Q5_1: BlockFormat(Q5_1, decode_q5_1),
    types.Q8_0: BlockFormat(Q8_0, decode_q8_0),
}
