"""Blocks of 256 elements whose groups of 16 or 32 have small integer scales: Q2_K to Q6_K, TQ1_0, TQ2_0.

Two-bit fields are packed in strides: with h = i / 128, j = i % 128 / 32 and l = i % 32, element i sits in
byte 32 h + l at bits 2j.  Arrays of codes below carry these axes by the same letters.
"""

import numpy as np

from penstock.weights import types
from penstock.weights.quants.block import BlockFormat, Blocks, Bytes, Floats, bit_planes, fields, widen

Q2_K = np.dtype([("scales", "u1", 16), ("q", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
Q3_K = np.dtype([("high", "u1", 32), ("q", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
Q4_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("q", "u1", 128)])
Q5_K = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("high", "u1", 32), ("q", "u1", 128)])
Q6_K = np.dtype([("q", "u1", 128), ("high", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])
TQ1_0 = np.dtype([("fives", "u1", 48), ("fours", "u1", 4), ("d", "<f2")])
TQ2_0 = np.dtype([("q", "u1", 64), ("d", "<f2")])


def _scale_groups(out: Floats, scale: Floats, minimum: Floats | None = None) -> None:
    """out [n, 256] = out * scale - minimum, both [n, groups]"""
    groups = out.reshape(*scale.shape, -1)
    groups *= scale[:, :, None]
    if minimum is not None:
        groups -= minimum[:, :, None]


def _put_crumbs(planes: Bytes, out: Floats) -> None:
    """planes [j 4, n, 64] of (h, l) -> out [n, 256] of (h, j, l)"""
    n = len(out)
    out.reshape(n, 2, 4, 32)[...] = planes.reshape(4, n, 2, 32).transpose(1, 2, 0, 3)


def decode_q2_k(blocks: Blocks, out: Floats) -> None:
    _put_crumbs(bit_planes(blocks["q"], 2), out)
    low, high = bit_planes(blocks["scales"], 4)  # each [n, 16]
    _scale_groups(out, widen(blocks["d"])[:, None] * low, widen(blocks["dmin"])[:, None] * high)


def decode_q3_k(blocks: Blocks, out: Floats) -> None:
    n = len(blocks)
    codes = bit_planes(blocks["q"], 2).reshape(4, n, 2, 32)  # j n h l
    third = bit_planes(blocks["high"], 1).reshape(2, 4, n, 32)  # h j n l
    codes |= third.transpose(1, 2, 0, 3) << 2
    _put_crumbs(codes, out)
    out -= np.float32(4)

    packed: Bytes = blocks["scales"]  # [n, 12]: 16 low nibbles, then 16 high two-bit fields
    low = np.concatenate(bit_planes(packed[:, :8], 4), axis=1)  # [n, 16]
    high = fields(packed[:, 8:], (0, 2, 4, 6), 3).transpose(0, 2, 1).reshape(n, 16)
    scales = (low | high << 4).astype(np.float32) - np.float32(32)
    _scale_groups(out, widen(blocks["d"])[:, None] * scales)


def _six_bit_scales(blocks: Blocks) -> tuple[Floats, Floats]:
    """The scales and minimums of the eight 32-element groups of Q4_K and Q5_K, each [n, 8], in float32."""
    first, second, nibbles = np.split(blocks["scales"], 3, axis=1)  # each [n, 4]
    # Groups 0-3 have their six bits in one byte; groups 4-7 four here and two atop the bytes of groups 0-3.
    scale = np.concatenate([first & 63, nibbles & 15 | first >> 6 << 4], axis=1)
    minimum = np.concatenate([second & 63, nibbles >> 4 | second >> 6 << 4], axis=1)
    return widen(blocks["d"])[:, None] * scale, widen(blocks["dmin"])[:, None] * minimum


def decode_q4_k(blocks: Blocks, out: Floats) -> None:
    n = len(blocks)
    nibbles = bit_planes(blocks["q"], 4).reshape(2, n, 4, 32)  # group = 2 * pair + plane
    out.reshape(n, 4, 2, 32)[...] = nibbles.transpose(1, 2, 0, 3)
    _scale_groups(out, *_six_bit_scales(blocks))


def decode_q5_k(blocks: Blocks, out: Floats) -> None:
    n = len(blocks)
    codes = bit_planes(blocks["q"], 4).reshape(2, n, 4, 32)
    fifth = bit_planes(blocks["high"], 1).reshape(4, 2, n, 32)  # bit k belongs to group k
    codes |= fifth.transpose(1, 2, 0, 3) << 4
    out.reshape(n, 4, 2, 32)[...] = codes.transpose(1, 2, 0, 3)
    _scale_groups(out, *_six_bit_scales(blocks))


def decode_q6_k(blocks: Blocks, out: Floats) -> None:
    n = len(blocks)
    # With j = 2 * plane + side, the low four bits of an element are in byte 64 h + 32 side + l.
    codes = bit_planes(blocks["q"], 4).reshape(2, n, 2, 2, 32)  # plane n h side l
    high = bit_planes(blocks["high"], 2).reshape(2, 2, n, 2, 32)  # plane side n h l
    codes |= high.transpose(0, 2, 3, 1, 4) << 4
    out.reshape(n, 2, 2, 2, 32)[...] = codes.transpose(1, 2, 0, 3, 4)
    out -= np.float32(32)
    _scale_groups(out, widen(blocks["d"])[:, None] * blocks["scales"])


# A ternary byte is a fraction b / 256 in base three: digit k is the integer part of 3 * frac(3^k b / 256).
_DIGITS = (np.arange(256) * 3 ** np.arange(5)[:, None] % 256 * 3 >> 8).astype(np.float32) - 1  # [5, 256]


def decode_tq1_0(blocks: Blocks, out: Floats) -> None:
    n = len(blocks)
    fives: Bytes = blocks["fives"]
    for packed, first, digits in ((fives[:, :32], 0, 5), (fives[:, 32:], 160, 5), (blocks["fours"], 240, 4)):
        width = packed.shape[1]
        values = np.take(_DIGITS[:digits], packed, axis=1)  # [digits, n, width]
        part = out[:, first : first + digits * width].reshape(n, digits, width)
        part[...] = values.transpose(1, 0, 2)
    out *= widen(blocks["d"])[:, None]


def decode_tq2_0(blocks: Blocks, out: Floats) -> None:
    _put_crumbs(bit_planes(blocks["q"], 2), out)
    out -= np.float32(1)
    out *= widen(blocks["d"])[:, None]


FORMATS = {
    types.Q2_K: BlockFormat(Q2_K, decode_q2_k),
    types.Q3_K: BlockFormat(Q3_K, decode_q3_k),
    types.Q4_K: BlockFormat(Q4_K, decode_q4_k),
    types.Q5_K: BlockFormat(Q5_K, decode_q5_k),
    types.Q6_K: BlockFormat(Q6_K, decode_q6_k),
    types.TQ1_0: BlockFormat(TQ1_0, decode_tq1_0),
    types.TQ2_0: BlockFormat(TQ2_0, decode_tq2_0),
}
