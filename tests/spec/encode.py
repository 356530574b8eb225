"""What encoders promise, in plain numpy: codes are the nearest that the block's scales allow, and a whole block is at
least as good as the simplest rule makes it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.weights import types
from penstock.weights.quants import dequantize
from penstock.weights.quants.grids import even_signs, grid
from penstock.weights.types import WeightType

Floats = NDArray[np.float64]

NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def weighted_error(values: NDArray[Any], raw: NDArray[np.uint8], kind: WeightType, weights: Floats) -> float:
    """Σ w (x − x̂)²"""
    return float((weights * (values.astype(np.float64) - dequantize(raw, kind)) ** 2).sum())


def levels(raw: NDArray[np.uint8], kind: WeightType) -> Floats:
    """[weights, levels]: every value that each weight of these blocks could have with the scales they have.

    Found by changing the codes and nothing else, so it knows where codes lie and nothing of how scales are made."""
    codes = {  # byte ranges of a block that hold codes
        types.Q4_0: [(2, 18)],
        types.Q5_0: [(2, 22)],
        types.Q5_1: [(4, 24)],
        types.IQ4_NL: [(2, 18)],
        types.Q2_K: [(16, 80)],
        types.Q3_K: [(0, 96)],
        types.Q4_K: [(16, 144)],
        types.Q5_K: [(16, 176)],
        types.Q6_K: [(0, 192)],
    }[kind]
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(600):  # every code of every weight turns up among so many
        changed = raw.reshape(-1, kind.block_bytes).copy()
        for begin, end in codes:
            changed[:, begin:end] = rng.integers(0, 256, (len(changed), end - begin))
        seen.append(dequantize(changed, kind).reshape(-1))
    return np.stack(seen, axis=1).astype(np.float64)


def naive(values: NDArray[np.float32], kind: WeightType) -> Floats:
    """What the range of every group gives, its scale kept as a real number: the simplest rule, and kind to it."""
    group = {types.Q2_K: 16, types.Q3_K: 16, types.Q6_K: 16}.get(kind, 32)
    x = values.reshape(-1, group).astype(np.float64)
    if kind in (types.Q2_K, types.Q4_K, types.Q5_K, types.Q5_1):
        most = {types.Q2_K: 3, types.Q4_K: 15}.get(kind, 31)
        low = x.min(axis=1, keepdims=True)
        low = low if kind is types.Q5_1 else np.minimum(low, 0)
        step = (x.max(axis=1, keepdims=True) - low) / most
        return np.asarray(low + step * np.rint((x - low) / np.where(step, step, 1))).reshape(values.shape)
    if kind is types.IQ4_NL:
        table = np.array(NONLINEAR) / 127
        size = np.abs(x).max(axis=1, keepdims=True)
        near = np.abs((x / np.where(size, size, 1))[..., None] - table).argmin(axis=-1)
        return np.asarray(size * table[near]).reshape(values.shape)
    half = {types.Q3_K: 4, types.Q4_0: 8, types.Q5_0: 16, types.Q6_K: 32}[kind]
    step = np.abs(x).max(axis=1, keepdims=True) / (half - 1)
    return np.asarray(step * np.rint(x / np.where(step, step, 1))).reshape(values.shape)


def iq2_xxs_of_a_group(x: Floats, w: Floats, scale: float) -> float:
    """The least Σ w (x − x̂)² of 32 weights at a scale: all of the codebook, with all of its signs."""
    vectors = grid("IQ2_XXS")[:, None] * even_signs()[None]  # [256, 128, 8]
    total = 0.0
    for part, weight in zip(x.reshape(4, 8), w.reshape(4, 8), strict=True):
        total += float((weight * (part - scale * vectors) ** 2).sum(axis=-1).min())
    return total
