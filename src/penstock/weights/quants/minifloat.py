"""Floats of eight and four bits: E4M3, E2M1 and the power-of-two scale E8M0.

DeepSeek-V4 checkpoints keep linear layers as E4M3 with one E8M0 scale per 128 x 128 block, and experts as
E2M1 with one E8M0 scale per 32 inputs.  GGUF's MXFP4 holds the same numbers as the latter; NVFP4 has an
E4M3 scale per 16 elements.

An E2M1 zero is positive whatever its sign bit says, in both containers, so repacking changes no bit of
the decoded values.
"""

import numpy as np

from penstock.weights import types
from penstock.weights.quants.block import BlockFormat, Blocks, Bytes, Floats, NibbleTable

MXFP4 = np.dtype([("e", "u1"), ("q", "u1", 16)])
NVFP4 = np.dtype([("scales", "u1", 4), ("q", "u1", (4, 8))])

FP8_TILE = 128  # rows and columns that share one scale in the checkpoint
FP4_GROUP = 32  # inputs that share one scale

# GGUF multiplies twice the E2M1 value with half the scale; products are the same and fit the same tables.
_TWICE_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
_TWICE_E2M1_NIBBLES = NibbleTable(_TWICE_E2M1)


def _e4m3_table() -> Floats:
    """[256]: sign, four exponent bits (bias 7), three fraction bits; no infinities, 0x7F and 0xFF are NaN."""
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    magnitude = np.where(
        exponent == 0, np.ldexp(fraction, -9), np.ldexp(8 + fraction, np.maximum(exponent, 1) - 10)
    )
    magnitude[0x7F] = np.nan
    return np.concatenate([magnitude, -magnitude]).astype(np.float32)


def _e8m0_table() -> Floats:
    """[256]: 2^(b - 127), where byte 0 is a float32 subnormal; 255 is NaN."""
    powers = np.ldexp(np.ones(256), np.arange(256) - 127)
    powers[255] = np.nan
    return powers.astype(np.float32)


_E4M3 = _e4m3_table()
_E8M0 = _e8m0_table()
# MXFP4 has no NaN: GGUF reads byte 255 as one more power of two.
_HALF_E8M0 = np.ldexp(np.ones(256), np.arange(256) - 128).astype(np.float32)


def _half_ue4m3_table() -> Floats:
    """[256]: NVFP4 scales, halved.  GGUF ignores their sign bit, and takes 0x7F (only) for zero."""
    magnitude = _E4M3[:128] / 2
    magnitude[0x7F] = 240
    table = np.concatenate([magnitude, magnitude])
    table[0x7F] = 0
    return table


_HALF_UE4M3 = _half_ue4m3_table()

# Both elements of a checkpoint FP4 byte as one eight-byte item, so that one lookup writes two numbers.
_BYTE = np.arange(256)
_E2M1 = np.array(_TWICE_E2M1, np.float32) / 2
_E2M1_PAIRS = np.stack([_E2M1[_BYTE & 15], _E2M1[_BYTE >> 4]], axis=1).view(np.uint64)[:, 0]  # [256]


def decode_e8m0(raw: Bytes) -> Floats:
    """Scale bytes of any shape as the powers of two they stand for."""
    return _E8M0[raw]


def decode_mxfp4(blocks: Blocks, out: Floats) -> None:
    _TWICE_E2M1_NIBBLES.expand(blocks["q"], out.reshape(-1, 2, 16))
    out *= _HALF_E8M0[blocks["e"]][:, None]


def decode_nvfp4(blocks: Blocks, out: Floats) -> None:
    groups = out.reshape(-1, 4, 16)
    _TWICE_E2M1_NIBBLES.expand(blocks["q"], groups.reshape(-1, 4, 2, 8))
    groups *= _HALF_UE4M3[blocks["scales"]][:, :, None]


FORMATS = {
    types.MXFP4: BlockFormat(MXFP4, decode_mxfp4),
    types.NVFP4: BlockFormat(NVFP4, decode_nvfp4),
}


def dequantize_fp8(raw: Bytes, scale: Bytes, first_row: int = 0) -> Floats:
    """E4M3 bytes [rows, cols] with E8M0 scales [ceil(matrix rows / 128), ceil(cols / 128)] as float32.

    `raw` may be a slab of a larger matrix that starts at row `first_row`; `scale` is the whole matrix's.
    """
    if raw.ndim != 2 or scale.ndim != 2:
        raise ValueError(f"FP8 weights and scales are matrices, not of shape {raw.shape} and {scale.shape}")
    rows, columns = raw.shape
    tile_rows, tile_columns = -(-(first_row + rows) // FP8_TILE), -(-columns // FP8_TILE)
    if first_row < 0 or scale.shape[1] != tile_columns or scale.shape[0] < tile_rows:
        raise ValueError(
            f"FP8 rows {first_row} to {first_row + rows} of {columns} columns need scales "
            f"[{tile_rows} or more, {tile_columns}], not {list(scale.shape)}"
        )
    _require_bytes(raw, scale)
    out: Floats = np.empty((rows, columns), np.float32)
    start = 0
    while start < rows:
        tile = (first_row + start) // FP8_TILE
        stop = min(rows, (tile + 1) * FP8_TILE - first_row)
        factors = np.repeat(_E8M0[scale[tile]], FP8_TILE)[:columns]  # [cols]
        # A few rows at a time, so that what one pass writes is still in the cache for the next.
        step = max(1, 65536 // max(1, columns))
        for row in range(start, stop, step):
            part = out[row : min(row + step, stop)]
            np.take(_E4M3, raw[row : min(row + step, stop)], out=part, mode="clip")
            with np.errstate(invalid="ignore", over="ignore"):
                part *= factors
        start = stop
    return out


def _check_fp4(raw: Bytes, scale: Bytes) -> tuple[int, int]:
    """The rows and groups of 32 of a checkpoint FP4 matrix, once its two tensors have been checked."""
    if (
        raw.ndim != 2
        or 2 * raw.shape[1] % FP4_GROUP
        or scale.shape != (len(raw), 2 * raw.shape[1] // FP4_GROUP)
    ):
        raise ValueError(
            f"FP4 weights are bytes [rows, cols / 2] with scales [rows, cols / {FP4_GROUP}], "
            f"not {list(raw.shape)} with {list(scale.shape)}"
        )
    _require_bytes(raw, scale)
    return len(raw), scale.shape[1]


def _require_bytes(raw: Bytes, scale: Bytes) -> None:
    if raw.dtype != np.uint8 or scale.dtype != np.uint8:
        raise ValueError(f"weights and scales must be uint8 arrays, not {raw.dtype} and {scale.dtype}")


def dequantize_fp4(raw: Bytes, scale: Bytes) -> Floats:
    """E2M1 pairs [rows, cols / 2], element 2j in the low nibble of byte j, with E8M0 scales
    [rows, cols / 32], as float32 [rows, cols]."""
    rows, groups = _check_fp4(raw, scale)
    out: Floats = np.empty((rows, groups, FP4_GROUP), np.float32)
    step = max(1, 65536 // max(1, groups * FP4_GROUP))
    for row in range(0, rows, step):
        part = out[row : row + step]
        pairs = part.reshape(len(part), -1).view(np.uint64)  # [step, cols / 2]
        np.take(_E2M1_PAIRS, raw[row : row + step], out=pairs, mode="clip")
        with np.errstate(invalid="ignore", over="ignore"):
            part *= _E8M0[scale[row : row + step]][:, :, None]
    return out.reshape(rows, groups * FP4_GROUP)
