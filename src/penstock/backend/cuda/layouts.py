"""How weights lie on the card, defined once in numpy; `kernels/repack.cu` does the same on the device.

A matrix is cut into tiles of 16 rows and each tile into cells of 256 columns.  A cell is contiguous, holds the codes
first and the scales behind them, and the cells of a tile follow each other: a warp streams its part of a tile with
one bulk copy, and all planes start at multiples of 16 bytes.  Inside a cell codes lie in the order in which the
tensor cores want them: of every 32 columns, lane 4g + t holds columns 8t … 8t + 7 of rows g and g + 8.

    register 0: row g,     columns 8t … 8t + 3        register 1: row g + 8, the same
    register 2: row g,     columns 8t + 4 … 8t + 7    register 3: row g + 8, the same

Rows and columns are padded with zeros to whole cells.  Nothing is rounded: `unpack` gives back the bytes of the file.

    >>> packed = pack(raw, types.Q8_0)  # [tiles, cells, 4352]
    >>> bool((unpack(packed, types.Q8_0, *raw.shape[:1], 4096) == raw).all())
    True
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.weights import types
from penstock.weights.types import WeightType

Bytes = NDArray[np.uint8]
Array = NDArray[Any]

TILE = 16  # rows
CELL = 256  # columns
STEPS = 8  # of 32 columns in a cell


class Layout(NamedTuple):
    """A format on the card.  `pack` and `unpack` are inverse: [tiles, cells, 16 rows, block bytes of a cell's row]
    ↔ the planes of the cells, each [tiles, cells, bytes]."""

    number: int  # as in kernels/formats.cuh
    cell_bytes: int
    pack: Callable[[Bytes], list[Array]]
    unpack: Callable[[Bytes], Array]


def packed_shape(kind: WeightType, rows: int, columns: int) -> tuple[int, int, int]:
    """[tiles, cells, bytes of a cell]"""
    return -(-rows // TILE), -(-columns // CELL), LAYOUTS[kind].cell_bytes


def pack(raw: Bytes, kind: WeightType) -> Bytes:
    """Stored rows, uint8 [rows, row bytes] → [tiles, cells, cell bytes]"""
    layout = LAYOUTS[kind]
    columns = raw.shape[1] // kind.block_bytes * kind.block
    tiles, cells, size = packed_shape(kind, len(raw), columns)
    padded: Bytes = np.zeros((tiles * TILE, kind.row_bytes(cells * CELL)), np.uint8)
    padded[: len(raw), : raw.shape[1]] = raw
    blocks = padded.reshape(tiles, TILE, cells, -1).swapaxes(1, 2)  # [tiles, cells, rows, bytes]
    planes = [
        np.ascontiguousarray(plane).view(np.uint8).reshape(tiles, cells, -1) for plane in layout.pack(blocks)
    ]
    packed: Bytes = np.concatenate(planes, axis=2)
    return np.pad(packed, ((0, 0), (0, 0), (0, size - packed.shape[2])))


def unpack(packed: Bytes, kind: WeightType, rows: int, columns: int) -> Bytes:
    """The inverse of `pack`: [tiles, cells, cell bytes] → stored rows [rows, row bytes]"""
    tiles = len(packed)
    blocks = LAYOUTS[kind].unpack(packed)  # [tiles, cells, rows, bytes]
    raw: Bytes = blocks.swapaxes(1, 2).reshape(tiles * TILE, -1)
    return np.ascontiguousarray(raw[:rows, : kind.row_bytes(columns)])


def interleave(first: Bytes, second: Bytes) -> Bytes:
    """Two matrices used side by side (gate and up): tile 0 of one, tile 0 of the other, tile 1 …

    [tiles, cells, bytes] twice → [tiles, 2 cells, bytes]
    """
    return np.concatenate([first, second], axis=1)


# ── the order of the tensor cores ─────────────────────────────────────────────────────────────────────────

# Codes [tiles, cells, (half g) rows, (step t pair byte) columns] ↔ [tiles, cells, step, g, t, pair, half, byte]
_TO_LANES = (0, 1, 4, 3, 5, 6, 2, 7)
_FROM_LANES = tuple(np.argsort(_TO_LANES).tolist())


def _to_lanes(codes: Array, steps: int = STEPS, width: int = 4) -> Array:
    """codes [tiles, cells, 16, columns] → [tiles, cells, steps, lanes 32, registers 4, width]"""
    tiles, cells = codes.shape[:2]
    split = codes.reshape(tiles, cells, 2, 8, steps, 4, 2, width)
    return split.transpose(_TO_LANES).reshape(tiles, cells, steps, 32, 4, width)


def _from_lanes(lanes: Array, steps: int = STEPS, width: int = 4) -> Array:
    tiles, cells = lanes.shape[:2]
    split = lanes.reshape(tiles, cells, steps, 8, 4, 2, 2, width)
    return split.transpose(_FROM_LANES).reshape(tiles, cells, TILE, -1)


def _by_pair(rows: Array) -> Array:
    """What belongs to rows: [tiles, cells, 16, n] → [tiles, cells, g, half, n], as lane 4g + t reads it."""
    tiles, cells, _, n = rows.shape
    return np.ascontiguousarray(rows.reshape(tiles, cells, 2, 8, n).swapaxes(2, 3))


def _from_pairs(pairs: Array) -> Array:
    tiles, cells, _, _, n = pairs.shape
    return pairs.swapaxes(2, 3).reshape(tiles, cells, TILE, n)


def _take(packed: Bytes, start: int, count: int, dtype: str, *shape: int) -> Array:
    part = np.ascontiguousarray(packed[:, :, start : start + count]).view(dtype)
    return part.reshape(*packed.shape[:2], *shape)


def _halves(blocks: Bytes, start: int, count: int) -> Array:
    return np.ascontiguousarray(blocks[..., start : start + 2 * count]).view("<u2")


# ── formats ───────────────────────────────────────────────────────────────────────────────────────────────


def _pack_q8_0(blocks: Bytes) -> list[Array]:
    groups = blocks.reshape(*blocks.shape[:3], STEPS, 34)
    scales = np.ascontiguousarray(groups[..., :2]).view("<u2")[..., 0]  # [tiles, cells, 16, steps]
    pairs = _by_pair(scales).swapaxes(3, 4)  # [.., g, step, half]
    return [_to_lanes(groups[..., 2:].reshape(*blocks.shape[:3], CELL)), pairs]


def _unpack_q8_0(packed: Bytes) -> Array:
    codes = _from_lanes(_take(packed, 0, 4096, "u1", STEPS, 32, 4, 4))
    scales = _from_pairs(_take(packed, 4096, 256, "<u2", 8, STEPS, 2).swapaxes(3, 4))
    groups = codes.reshape(*codes.shape[:3], STEPS, 32)
    raw = np.ascontiguousarray(scales)[..., None].view("u1")
    return np.concatenate([raw, groups], axis=-1).reshape(*codes.shape[:3], -1)


def _pack_halves(blocks: Bytes) -> list[Array]:
    """F16 and BF16: steps of 16 columns, of which lane 4g + t holds 4t … 4t + 3."""
    return [_to_lanes(blocks.view("<u2"), steps=16, width=2)]


def _unpack_halves(packed: Bytes) -> Array:
    codes = _from_lanes(_take(packed, 0, 8192, "<u2", 16, 32, 4, 2), steps=16, width=2)
    return np.ascontiguousarray(codes).view("u1")


def _pack_f32(blocks: Bytes) -> list[Array]:
    """F32: the same lanes, four registers of two floats."""
    return [_to_lanes(blocks.view("<u4"), steps=16, width=2)]


def _unpack_f32(packed: Bytes) -> Array:
    codes = _from_lanes(_take(packed, 0, 16384, "<u4", 16, 32, 4, 2), steps=16, width=2)
    return np.ascontiguousarray(codes).view("u1")


_PARITY = np.array([bin(v).count("1") & 1 for v in range(128)], np.uint32)


def _pack_iq2_xxs(blocks: Bytes) -> list[Array]:
    """Indices [lane][8 steps][half]; signs, all eight of a vector, [lane][pair of steps] with the sign of byte b of
    register r (of the even step, then of the odd one) at bit r + 8 b; 4-bit scales; d."""
    d = _halves(blocks, 0, 1)  # [tiles, cells, 16, 1]
    groups = np.ascontiguousarray(blocks[..., 2:]).view("<u4").reshape(*blocks.shape[:3], STEPS, 2)
    index = np.ascontiguousarray(groups[..., 0]).view("u1").reshape(*blocks.shape[:3], STEPS * 4)
    words = groups[..., 1]  # [tiles, cells, 16, steps]
    seven = (words[..., None] >> np.array([0, 7, 14, 21], np.uint32)) & 127  # [.., steps, 4 vectors]
    eight = seven | _PARITY[seven] << 7
    bits = (eight[..., None] >> np.arange(8, dtype=np.uint32)) & 1
    lanes = _to_lanes(bits.reshape(*blocks.shape[:3], CELL))  # [tiles, cells, steps, lane, register, byte]
    shape = lanes.shape[:2]
    pairs = lanes.reshape(*shape, 4, 2, 32, 4, 4).swapaxes(
        3, 4
    )  # [.., pair, lane, step of pair, register, byte]
    shifts = np.arange(8, dtype=np.uint32).reshape(2, 4, 1) + 8 * np.arange(4, dtype=np.uint32)
    signs = (pairs << shifts).sum(axis=(4, 5, 6), dtype=np.uint32).swapaxes(2, 3)  # [.., lane, pair]
    # Vector t of a group is lane t's: rows (half g), columns (step t) → [g, t, step, half]
    by_lane = index.reshape(*shape, 2, 8, STEPS, 4).transpose(0, 1, 3, 5, 4, 2)
    scales = ((words >> 28) << (4 * np.arange(8, dtype=np.uint32))).sum(axis=3, dtype=np.uint32)  # [.., 16]
    return [by_lane, signs, _by_pair(scales[..., None]), _by_pair(d)]


def _unpack_iq2_xxs(packed: Bytes) -> Array:
    shape = packed.shape[:2]
    index = (
        _take(packed, 0, 512, "u1", 8, 4, STEPS, 2)
        .transpose(0, 1, 5, 2, 4, 3)
        .reshape(*shape, TILE, STEPS, 4)
    )
    signs = _take(packed, 512, 512, "<u4", 32, 4).swapaxes(2, 3)  # [.., pair, lane]
    shifts = np.arange(8, dtype=np.uint32).reshape(2, 4, 1) + 8 * np.arange(4, dtype=np.uint32)
    bits = (signs[..., None, None, None] >> shifts) & 1  # [.., pair, lane, step of pair, register, byte]
    lanes = bits.swapaxes(3, 4).reshape(*shape, STEPS, 32, 4, 4)
    eight = _from_lanes(lanes).reshape(*shape, TILE, STEPS, 4, 8)
    seven = (eight[..., :7] << np.arange(7, dtype=np.uint32)).sum(axis=-1, dtype=np.uint32)
    scales = _from_pairs(_take(packed, 1024, 64, "<u4", 8, 2, 1))  # [.., 16, 1]
    words = (seven << np.array([0, 7, 14, 21], np.uint32)).sum(axis=-1, dtype=np.uint32)
    words |= ((scales >> (4 * np.arange(8, dtype=np.uint32))) & 15) << 28
    d = _from_pairs(_take(packed, 1088, 32, "<u2", 8, 2, 1))
    groups = np.concatenate([np.ascontiguousarray(index), words[..., None].view("u1")], axis=-1)
    return np.concatenate([np.ascontiguousarray(d).view("u1"), groups.reshape(*shape, TILE, 64)], axis=-1)


def _pack_codes(codes: Array, width: int) -> Array:
    """Codes of `width` (2 or 4) bits → words [.., quad of steps, lane, words]: register r of a step at bit 2r of
    every byte (2 bits), or registers 0, 1 in the low and high nibbles of one word and 2, 3 of the next (4 bits)."""
    lanes = _to_lanes(codes).astype(np.uint8)  # [tiles, cells, steps, lane, register, byte]
    if width == 2:
        words = lanes[..., 0, :] | lanes[..., 1, :] << 2 | lanes[..., 2, :] << 4 | lanes[..., 3, :] << 6
        return words.reshape(*words.shape[:2], 2, 4, 32, 4).swapaxes(3, 4)
    words = lanes[..., 0::2, :] | lanes[..., 1::2, :] << 4  # [.., steps, lane, 2 words, 4]
    return words.reshape(*words.shape[:2], 4, 2, 32, 8).swapaxes(3, 4)


def _unpack_codes(packed: Bytes, width: int) -> Array:
    shape = packed.shape[:2]
    if width == 2:
        words = _take(packed, 0, 1024, "u1", 2, 32, 4, 4).swapaxes(3, 4).reshape(*shape, STEPS, 32, 1, 4)
        return _from_lanes(words >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3)
    words = _take(packed, 0, 2048, "u1", 4, 32, 2, 8).swapaxes(3, 4).reshape(*shape, STEPS, 32, 2, 1, 4)
    return _from_lanes((words >> np.array([0, 4], np.uint8)[:, None] & 15).reshape(*shape, STEPS, 32, 4, 4))


def _pack_q2_k(blocks: Bytes) -> list[Array]:
    """Codes; bytes scale | minimum << 4 [g][which half of a step][half][step]; d and dmin [g][half]."""
    shape = blocks.shape[:3]
    strided = blocks[..., 16:80].reshape(*shape, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scales = blocks[..., :16].reshape(*shape[:2], 2, 8, STEPS, 2).transpose(0, 1, 3, 5, 2, 4)
    return [_pack_codes(strided.reshape(*shape, CELL), 2), scales, _by_pair(_halves(blocks, 80, 2))]


def _unpack_q2_k(packed: Bytes) -> Array:
    shape = (*packed.shape[:2], TILE)
    codes = _unpack_codes(packed, 2).reshape(*shape, 2, 4, 32)
    strided = (codes << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=4, dtype=np.uint8)
    scales = _take(packed, 1024, 256, "u1", 8, 2, 2, STEPS).transpose(0, 1, 4, 2, 5, 3)
    d = _from_pairs(_take(packed, 1280, 64, "<u2", 8, 2, 2))
    return np.concatenate(
        [scales.reshape(*shape, 16), strided.reshape(*shape, 64), np.ascontiguousarray(d).view("u1")], axis=-1
    )


def _pack_q4_k(blocks: Bytes) -> list[Array]:
    """Codes; scales and minimums as bytes [g][half][8 + 8]; d and dmin [g][half]."""
    shape = blocks.shape[:3]
    nibbles = blocks[..., 16:144].reshape(*shape, 4, 1, 32) >> np.array([0, 4], np.uint8)[:, None] & 15
    first, second, third = np.split(blocks[..., 4:16], 3, axis=-1)
    scale = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=-1)
    minimum = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=-1)
    small = _by_pair(np.concatenate([scale, minimum], axis=-1))
    return [_pack_codes(nibbles.reshape(*shape, CELL), 4), small, _by_pair(_halves(blocks, 0, 2))]


def _unpack_q4_k(packed: Bytes) -> Array:
    shape = (*packed.shape[:2], TILE)
    codes = _unpack_codes(packed, 4).reshape(*shape, 4, 2, 32)
    nibbles = (codes[..., 0, :] | codes[..., 1, :] << 4).reshape(*shape, 128)
    small = _from_pairs(_take(packed, 2048, 256, "u1", 8, 2, 16))
    scale, minimum = small[..., :8], small[..., 8:]
    first = scale[..., :4] | scale[..., 4:] >> 4 << 6
    second = minimum[..., :4] | minimum[..., 4:] >> 4 << 6
    third = scale[..., 4:] & 15 | minimum[..., 4:] << 4
    d = np.ascontiguousarray(_from_pairs(_take(packed, 2304, 64, "<u2", 8, 2, 2))).view("u1")
    return np.concatenate([d, first, second, third, nibbles], axis=-1)


def _pack_mxfp4(blocks: Bytes) -> list[Array]:
    """Codes as nibbles, four to a register: registers 0 and 1 in one word, 2 and 3 in the next; then the exponents
    [g][half][step]."""
    shape = blocks.shape[:3]
    groups = blocks.reshape(*shape, STEPS, 17)
    codes = np.concatenate([groups[..., 1:] & 15, groups[..., 1:] >> 4], axis=-1).reshape(*shape, CELL)
    lanes = _to_lanes(codes)  # [.., steps, lane, register, byte]
    nibbles = lanes[..., 0::2] | lanes[..., 1::2] << 4  # [.., steps, lane, register, 2]
    words = nibbles.reshape(*shape[:2], 4, 2, 32, 8).swapaxes(3, 4)
    return [words, _by_pair(np.ascontiguousarray(groups[..., 0]))]


def _unpack_mxfp4(packed: Bytes) -> Array:
    shape = packed.shape[:2]
    words = _take(packed, 0, 2048, "u1", 4, 32, 2, 8).swapaxes(3, 4).reshape(*shape, STEPS, 32, 4, 2)
    codes = _from_lanes(np.stack([words & 15, words >> 4], axis=-1).reshape(*shape, STEPS, 32, 4, 4))
    groups = codes.reshape(*shape, TILE, STEPS, 32)
    exponents = _from_pairs(_take(packed, 2048, 128, "u1", 8, 2, STEPS))
    nibbles = groups[..., :16] | groups[..., 16:] << 4
    return np.concatenate([exponents[..., None], nibbles], axis=-1).reshape(*shape, TILE, -1)


def _pack_q6_k(blocks: Bytes) -> list[Array]:
    """Codes less 32, a byte each; scales [g][half][16]; d [g][half]."""
    shape = blocks.shape[:3]
    low, high = blocks[..., :128].reshape(*shape, 2, 2, 32), blocks[..., 128:192].reshape(*shape, 2, 1, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=-2)  # [.., halves of the block 2, quarters 4, 32]
    tops = high >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = ((nibbles | tops << 4).astype(np.int8) - 32).view(np.uint8)
    return [
        _to_lanes(codes.reshape(*shape, CELL)),
        _by_pair(blocks[..., 192:208]),
        _by_pair(_halves(blocks, 208, 1)),
    ]


def _unpack_q6_k(packed: Bytes) -> Array:
    shape = (*packed.shape[:2], TILE)
    lanes = _from_lanes(_take(packed, 0, 4096, "u1", STEPS, 32, 4, 4))
    codes = (np.ascontiguousarray(lanes).view(np.int8) + 32).view(np.uint8).reshape(*shape, 2, 4, 32)
    nibbles, tops = codes & 15, codes >> 4
    low = nibbles[..., :2, :] | nibbles[..., 2:, :] << 4
    high = (tops << np.array([0, 2, 4, 6], np.uint8)[:, None]).sum(axis=-2, dtype=np.uint8)
    scales = _from_pairs(_take(packed, 4096, 256, "u1", 8, 2, 16))
    d = np.ascontiguousarray(_from_pairs(_take(packed, 4352, 32, "<u2", 8, 2, 1))).view("u1")
    return np.concatenate([low.reshape(*shape, 128), high.reshape(*shape, 64), scales, d], axis=-1)


def _pack_fp8(blocks: Bytes) -> list[Array]:
    """Codes in the order of F16; exponents [g][half][2]."""
    groups = blocks.reshape(*blocks.shape[:3], 2, 129)
    codes = np.ascontiguousarray(groups[..., 1:]).reshape(*blocks.shape[:3], CELL)
    return [_to_lanes(codes, steps=16, width=2), _by_pair(np.ascontiguousarray(groups[..., 0]))]


def _unpack_fp8(packed: Bytes) -> Array:
    codes = _from_lanes(_take(packed, 0, 4096, "u1", 16, 32, 4, 2), steps=16, width=2)
    exponents = _from_pairs(_take(packed, 4096, 32, "u1", 8, 2, 2))
    groups = codes.reshape(*codes.shape[:3], 2, 128)
    return np.concatenate([exponents[..., None], groups], axis=-1).reshape(*codes.shape[:3], -1)


# FP8 weights with the exponent that 128 of them share before them: how their rows and the scales' tensor meet.
FP8_128 = WeightType("FP8_128", 128, 129, None)

# Cells are no larger than the file's blocks, but for all eight signs of a vector in IQ2_XXS (seven in the file) and
# whole bytes for the six-bit scales of Q4_K and the six-bit codes of Q6_K: 6 %, 3 % and 31 % more memory for fewer
# instructions.
LAYOUTS: dict[WeightType, Layout] = {
    types.Q8_0: Layout(0, 4352, _pack_q8_0, _unpack_q8_0),
    types.F16: Layout(1, 8192, _pack_halves, _unpack_halves),
    types.IQ2_XXS: Layout(2, 1120, _pack_iq2_xxs, _unpack_iq2_xxs),
    types.Q2_K: Layout(3, 1344, _pack_q2_k, _unpack_q2_k),
    types.Q4_K: Layout(4, 2368, _pack_q4_k, _unpack_q4_k),
    types.MXFP4: Layout(5, 2176, _pack_mxfp4, _unpack_mxfp4),
    types.BF16: Layout(6, 8192, _pack_halves, _unpack_halves),
    types.F32: Layout(7, 16384, _pack_f32, _unpack_f32),
    types.Q6_K: Layout(8, 4384, _pack_q6_k, _unpack_q6_k),
    FP8_128: Layout(9, 4128, _pack_fp8, _unpack_fp8),
}
