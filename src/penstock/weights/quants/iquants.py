"""Formats with codebooks: IQ1 to IQ3 take whole vectors from a grid, IQ4 single values from a table.

Arrays of vectors are written straight into the output: out [n, 256] is [n, 32 vectors, 8] or [n, 64, 4].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.weights import types
from penstock.weights.quants.block import BlockFormat, Blocks, Floats, NibbleTable, fields, widen
from penstock.weights.quants.grids import even_signs, grid, shifted_iq1_grid, signs

_XXS_GROUP = np.dtype([("index", "u1", 4), ("signs", "<u4")])  # the top four sign bits are the scale
IQ2_XXS = np.dtype([("d", "<f2"), ("groups", _XXS_GROUP, 8)])
IQ2_XS = np.dtype([("d", "<f2"), ("q", "<u2", 32), ("scales", "u1", 8)])
IQ2_S = np.dtype([("d", "<f2"), ("q", "u1", 32), ("signs", "u1", 32), ("high", "u1", 8), ("scales", "u1", 8)])
IQ3_XXS = np.dtype([("d", "<f2"), ("q", "u1", 64), ("signs", "<u4", 8)])
IQ3_S = np.dtype([("d", "<f2"), ("q", "u1", 64), ("high", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])
IQ1_S = np.dtype([("d", "<f2"), ("q", "u1", 32), ("high", "<u2", 8)])
IQ1_M = np.dtype([("q", "u1", 32), ("high", "u1", 16), ("scales", "<u2", 4)])
IQ4_NL = np.dtype([("d", "<f2"), ("q", "u1", 16)])
IQ4_XS = np.dtype([("d", "<f2"), ("scales_high", "<u2"), ("scales_low", "u1", 4), ("q", "u1", (8, 16))])

_NONLINEAR = NibbleTable((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))


def _put_vectors(table: Floats, index: NDArray[Any], out: Floats) -> None:
    """out [n, 256] = the vectors of `table` at `index` (n x 32 or n x 64 of them, in any shape)"""
    length = table.shape[1]
    np.take(table, index.reshape(-1), axis=0, out=out.reshape(-1, length), mode="clip")


def _apply_signs(table: Floats, index: NDArray[Any], out: Floats) -> None:
    vectors = out.reshape(-1, 8)
    vectors *= np.take(table, index.reshape(-1), axis=0, mode="clip")


def _scale_groups(scale: Floats, out: Floats) -> None:
    """scale [n, groups]"""
    groups = out.reshape(*scale.shape, -1)
    groups *= scale[:, :, None]


def _half_step_scale(blocks: Blocks, steps: NDArray[Any], unit: float) -> Floats:
    """d * (steps + 1/2) * unit, [n, groups]"""
    scale: Floats = widen(blocks["d"])[:, None] * (steps.astype(np.float32) + np.float32(0.5))
    scale *= np.float32(unit)
    return scale


def _nibble_scales(blocks: Blocks) -> NDArray[Any]:
    """[n, twice the bytes of `scales`]"""
    return fields(blocks["scales"], (0, 4), 15).reshape(len(blocks), -1)


def decode_iq2_xxs(blocks: Blocks, out: Floats) -> None:
    words = blocks["groups"]["signs"]  # [n, 8]
    _put_vectors(grid("IQ2_XXS"), blocks["groups"]["index"], out)
    _apply_signs(even_signs(), fields(words, (0, 7, 14, 21), 127), out)
    _scale_groups(_half_step_scale(blocks, words >> 28, 0.25), out)


def decode_iq2_xs(blocks: Blocks, out: Floats) -> None:
    words = blocks["q"]  # [n, 32]
    _put_vectors(grid("IQ2_XS"), words & 511, out)
    _apply_signs(even_signs(), words >> 9, out)
    _scale_groups(_half_step_scale(blocks, _nibble_scales(blocks), 0.25), out)


def decode_iq2_s(blocks: Blocks, out: Floats) -> None:
    index = fields(blocks["high"], (0, 2, 4, 6), 3).astype(np.uint16).reshape(-1, 32)
    index <<= 8
    index |= blocks["q"]
    _put_vectors(grid("IQ2_S"), index, out)
    _apply_signs(signs(), blocks["signs"], out)
    _scale_groups(_half_step_scale(blocks, _nibble_scales(blocks), 0.25), out)


def decode_iq3_xxs(blocks: Blocks, out: Floats) -> None:
    words = blocks["signs"]  # [n, 8]
    _put_vectors(grid("IQ3_XXS"), blocks["q"], out)
    _apply_signs(even_signs(), fields(words, (0, 7, 14, 21), 127), out)
    _scale_groups(_half_step_scale(blocks, words >> 28, 0.5), out)


def decode_iq3_s(blocks: Blocks, out: Floats) -> None:
    index = fields(blocks["high"], tuple(range(8)), 1).astype(np.uint16).reshape(-1, 64)
    index <<= 8
    index |= blocks["q"]
    _put_vectors(grid("IQ3_S"), index, out)
    _apply_signs(signs(), blocks["signs"], out)
    _scale_groups(widen(blocks["d"])[:, None] * (_nibble_scales(blocks) * 2 + 1), out)


# The IQ1 formats shift each vector by +1/8 or -1/8.  Bit 11 of our index selects the shift, so that the
# shifted vector is a lookup too.


def decode_iq1_s(blocks: Blocks, out: Floats) -> None:
    words = blocks["high"]  # [n, 8]: four 3-bit upper parts of indices, 3-bit scale, sign of the shift
    index = fields(words, (0, 3, 6, 9), 7)  # [n, 8, 4]
    index |= (words >> 15 << 3)[:, :, None]
    index <<= 8
    index |= blocks["q"].reshape(-1, 8, 4)
    _put_vectors(shifted_iq1_grid(), index, out)
    _scale_groups(widen(blocks["d"])[:, None] * ((words >> 12 & 7) * 2 + 1), out)


def decode_iq1_m(blocks: Blocks, out: Floats) -> None:
    # One nibble of `high` per vector: three upper bits of its index, then the sign of its shift.
    index = fields(blocks["high"], (0, 4), 15).astype(np.uint16).reshape(-1, 32)
    index <<= 8
    index |= blocks["q"]
    _put_vectors(shifted_iq1_grid(), index, out)

    words = blocks["scales"]  # [n, 4]: four 3-bit scales each, and a quarter of the bits of d at the top
    quarters = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = widen(np.bitwise_or.reduce(quarters, axis=1).view(np.float16))
    steps = fields(words, (0, 3, 6, 9), 7).reshape(-1, 16)
    _scale_groups(d[:, None] * (steps * 2 + 1), out)


def decode_iq4_nl(blocks: Blocks, out: Floats) -> None:
    _NONLINEAR.expand(blocks["q"], out.reshape(-1, 2, 16))
    out *= widen(blocks["d"])[:, None]


def decode_iq4_xs(blocks: Blocks, out: Floats) -> None:
    _NONLINEAR.expand(blocks["q"], out.reshape(-1, 8, 2, 16))
    low = fields(blocks["scales_low"], (0, 4), 15).reshape(-1, 8)
    high = fields(blocks["scales_high"], tuple(range(0, 16, 2)), 3)  # [n, 8]
    scales = (low | high << 4).astype(np.float32) - np.float32(32)
    _scale_groups(widen(blocks["d"])[:, None] * scales, out)


FORMATS = {
    types.IQ1_S: BlockFormat(IQ1_S, decode_iq1_s),
    types.IQ1_M: BlockFormat(IQ1_M, decode_iq1_m),
    types.IQ2_XXS: BlockFormat(IQ2_XXS, decode_iq2_xxs),
    types.IQ2_XS: BlockFormat(IQ2_XS, decode_iq2_xs),
    types.IQ2_S: BlockFormat(IQ2_S, decode_iq2_s),
    types.IQ3_XXS: BlockFormat(IQ3_XXS, decode_iq3_xxs),
    types.IQ3_S: BlockFormat(IQ3_S, decode_iq3_s),
    types.IQ4_NL: BlockFormat(IQ4_NL, decode_iq4_nl),
    types.IQ4_XS: BlockFormat(IQ4_XS, decode_iq4_xs),
}
