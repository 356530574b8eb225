"""Random weights straight in their stored form: random bits everywhere, then just enough order.

Quantising random floats would cost a hundred times more than writing them.  Instead every byte is drawn at
random and only the scale fields are then forced into a narrow range, whose place is chosen so that the decoded
numbers have mean 0 and the wanted standard deviation.  No code decodes to an infinity or a NaN.

    >>> rows = random_blocks(Q8_0, 0.02)(np.random.default_rng(0), 128)
    >>> rows.shape, round(float(dequantize(rows, Q8_0).std()), 3)
    ((4352,), 0.02)
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from penstock.weights.quants import dequantize
from penstock.weights.types import (
    BF16,
    F16,
    F32,
    IQ2_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
    MXFP4,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_K,
    Q5_0,
    Q5_K,
    Q6_K,
    Q8_0,
    WeightType,
)

Bytes = NDArray[np.uint8]
Maker = Callable[[Generator, int], Bytes]  # (source of bits, number of blocks) → their bytes

# Where a block keeps its float16 scales, as an index of 16-bit words, and how large each is relative to the
# first.  In Q2_K, Q4_K and Q5_K the second one scales the minimums: it must outweigh the average code (1.5 of 0…3,
# 7.5 of 0…15, 15.5 of 0…31, times a group scale as large as the group minimum on average) for the mean to be 0.
_HALF_SCALES: Final[dict[WeightType, tuple[tuple[int, float], ...]]] = {
    Q8_0: ((0, 1.0),),
    IQ2_XXS: ((0, 1.0),),
    Q2_K: ((40, 1.0), (41, 1.5)),
    Q3_K: ((54, 1.0),),
    Q4_K: ((0, 1.0), (1, 7.5)),
    Q5_K: ((0, 1.0), (1, 15.5)),
    Q6_K: ((104, 1.0),),
    Q4_0: ((0, 1.0),),
    Q5_0: ((0, 1.0),),
    IQ3_S: ((0, 1.0),),
    IQ4_NL: ((0, 1.0),),
    IQ4_XS: ((0, 1.0),),
}
_SPREAD: Final = 256  # neighbouring float16 numbers that a scale is drawn from: about a quarter of an octave
_OCTAVES: Final = 4  # magnitudes of plain numbers span this many

_SAMPLE: Final = 4096  # blocks decoded to find out how wide a format's random codes are


def random_words(rng: Generator, nbytes: int) -> NDArray[np.uint64]:
    """Random bits, `nbytes` rounded up to whole words."""
    # `integers` over the full range is one machine word per draw and, unlike `random_raw`, frees the GIL.
    return rng.integers(0, 2**64 - 1, -(-nbytes // 8), dtype=np.uint64, endpoint=True)


@cache
def random_blocks(kind: WeightType, std: float) -> Maker:
    """Makes blocks of `kind` that decode to mean 0 and standard deviation `std`."""
    if kind in (F16, BF16, F32):
        return _plain_maker(kind, std)
    if kind is MXFP4:
        return _mxfp4_maker(std)
    return _scaled_maker(kind, std / _unit_std(kind))


# ── formats with float16 scales ───────────────────────────────────────────────────────────────────────────


def _scaled_maker(kind: WeightType, scale: float) -> Maker:
    """Blocks whose first scale is `scale` on average."""
    bases = [(word, np.uint16(_half_base(scale * ratio))) for word, ratio in _HALF_SCALES[kind]]

    def make(rng: Generator, blocks: int) -> Bytes:
        words = random_words(rng, blocks * kind.block_bytes)
        if kind is Q8_0:
            # Odd codes lie evenly around 0 and leave out −128, which no quantiser writes.
            words |= np.uint64(0x0101010101010101)
        raw: Bytes = words.view(np.uint8)[: blocks * kind.block_bytes]
        halves = raw.view(np.uint16).reshape(blocks, -1)
        for word, base in bases:
            column = halves[:, word]
            column &= np.uint16(_SPREAD - 1)
            column += base
        return raw

    return make


@cache
def _unit_std(kind: WeightType) -> float:
    """Standard deviation of random blocks whose scale is 1 on average."""
    raw = _scaled_maker(kind, 1.0)(np.random.default_rng(0), _SAMPLE)
    return float(dequantize(raw, kind).std(dtype=np.float64))


def _half_base(mean: float) -> int:
    """The first of `_SPREAD` consecutive float16 bit patterns with this mean."""
    magnitudes = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    return _place(magnitudes, _SPREAD, mean)


def _place(rising: NDArray[np.float64], count: int, mean: float) -> int:
    """Where `count` neighbours of a rising sequence average `mean`."""
    sums = np.concatenate([[0.0], np.cumsum(rising)])
    means = (sums[count:] - sums[:-count]) / count
    return int(np.searchsorted(means, mean).clip(0, len(means) - 1))


# ── powers of two, and plain numbers ──────────────────────────────────────────────────────────────────────


def _mxfp4_maker(std: float) -> Maker:
    """Two neighbouring exponents, mixed so that the mean square comes out right."""
    mean_square = float(np.mean(np.square([0, 0.5, 1, 1.5, 2, 3, 4, 6])))
    wanted = math.log(std**2 / mean_square, 4)
    exponent = math.floor(wanted)
    larger = round(256 * (4 ** (wanted - exponent) - 1) / 3)  # of 256 scale bytes, how many are one step up

    def make(rng: Generator, blocks: int) -> Bytes:
        nbytes = blocks * MXFP4.block_bytes
        raw: Bytes = random_words(rng, nbytes).view(np.uint8)[:nbytes]
        scales = raw.reshape(blocks, MXFP4.block_bytes)[:, 0]
        scales[...] = np.uint8(127 + exponent) + (scales < larger)
        return raw

    return make


def _plain_maker(kind: WeightType, std: float) -> Maker:
    """Sign and fraction stay random, and so do the lowest bits of the exponent; the rest is added as one number.

    The sum stays below the exponent of infinity and never carries into the sign, so all numbers of a word are
    done by one addition.
    """
    if kind is F16:
        magnitudes: NDArray[Any] = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
        width, count = 16, _OCTAVES << 10
    else:  # BF16 is the upper half of F32, so both have the same place
        magnitudes = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
        width, count = 16, _OCTAVES << 7
    base = _place(magnitudes.astype(np.float64) ** 2, count, std**2)
    keep = 0x8000 | (count - 1)
    if kind is F32:
        width, base, keep = 32, base << 16, keep << 16 | 0xFFFF
    lanes = sum(1 << lane for lane in range(0, 64, width))

    def make(rng: Generator, numbers: int) -> Bytes:
        nbytes = numbers * kind.block_bytes
        words = random_words(rng, nbytes)
        words &= np.uint64(keep * lanes)
        words += np.uint64(base * lanes)
        return words.view(np.uint8)[:nbytes]

    return make
