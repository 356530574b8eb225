"""Plain float64 versions of what the kernels compute, from the formulas of the model's description."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.backend.cuda.layouts import FP8_128
from penstock.weights import types
from penstock.weights.quants import dequantize
from penstock.weights.random_blocks import random_blocks
from penstock.weights.types import WeightType

Floats = NDArray[Any]  # float64 wherever it is made here


def random_weights(kind: WeightType, rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """Stored rows [rows, row bytes] that decode to numbers of mean 0 and standard deviation 0.02."""
    if kind is FP8_128:
        rng, shape = np.random.default_rng(seed), (rows, columns // 128, 129)
        raw = rng.integers(0, 256, shape, np.uint8) & np.uint8(0xBF)  # no number above 1, and no NaN
        raw[..., 0] = rng.integers(118, 124, shape[:2])
        return raw.reshape(rows, -1)
    blocks = rows * columns // kind.block
    if kind is types.BF16 or kind is types.F32 or kind is types.F16:
        blocks = rows * columns
    return random_blocks(kind, 0.02)(np.random.default_rng(seed), blocks).reshape(rows, -1).copy()


def decoded(raw: NDArray[np.uint8], kind: WeightType) -> Floats:
    if kind is FP8_128:
        groups = raw.reshape(len(raw), -1, 129)
        codes, exponents = groups[..., 1:], groups[..., 0].astype(np.float64) - 127
        exponent, fraction = codes >> 3 & 15, (codes & 7) / 8
        size = np.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent.astype(int) - 7))
        values: Floats = np.where(codes & 128, -size, size) * 2.0 ** exponents[..., None]
        return values.reshape(len(raw), -1)
    return dequantize(raw, kind).astype(np.float64)


def random_inputs(rows: int, columns: int, seed: int) -> NDArray[np.float32]:
    """Numbers with a few large ones among them, as activations have."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * np.exp(rng.standard_normal((rows, columns)))
    return x.astype(np.float32)


def as_digits(x: Floats) -> Floats:
    """x as the integer kernels see it: whole multiples of the largest of every 256 / 32512."""
    rows, columns = x.shape
    padded = np.zeros((rows, -(-columns // 256) * 256))
    padded[:, :columns] = x
    cells = padded.reshape(rows, -1, 256)
    scale = np.maximum(np.abs(cells).max(axis=2, keepdims=True) / 32512, 1e-38)
    out: Floats = (np.rint(cells / scale) * scale).reshape(rows, -1)[:, :columns]
    return out


def rms_norm(x: Floats, weight: Floats | float, eps: float) -> Floats:
    out: Floats = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight
    return out


def swiglu(gate: Floats, up: Floats, limit: float) -> Floats:
    gate = np.minimum(gate, limit)
    out: Floats = gate / (1 + np.exp(-gate)) * np.clip(up, -limit, limit)
    return out


def router_scores(logits: Floats) -> Floats:
    out: Floats = np.sqrt(np.log1p(np.exp(logits)))
    return out


def error(result: NDArray[np.float32], wanted: Floats) -> float:
    """Largest difference, as a share of the largest number wanted.  Never passes with NaN."""
    difference = np.abs(result.astype(np.float64) - wanted).max()
    return float(difference / np.abs(wanted).max()) if np.isfinite(result).all() else float("inf")
