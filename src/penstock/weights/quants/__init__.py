"""Conversion between stored weights and float32: decoding in numpy, encoding in native code.

`dequantize` and `quantize` handle the formats that stand alone; checkpoint FP8 and FP4 tensors come with a
separate tensor of scales and have functions of their own.  Decoding is bit-exact: the same bytes give the
same floats as GGUF's own decoders, so every faster kernel can be compared with these.

    >>> packed = quantize(np.ones((2, 64), np.float32), types.Q8_0)
    >>> packed.shape
    (2, 68)
    >>> dequantize(packed, types.Q8_0).shape
    (2, 64)
"""

import numpy as np

from penstock.weights import types
from penstock.weights.quants import iquants, kquants, legacy, minifloat, plain
from penstock.weights.quants.block import Blocks, Bytes, Floats
from penstock.weights.quants.encode import ANYTHING, ENCODED, encode_rows
from penstock.weights.quants.minifloat import decode_e8m0, dequantize_fp4, dequantize_fp8
from penstock.weights.types import WeightType

__all__ = [
    "DEQUANTIZABLE",
    "QUANTIZABLE",
    "decode_e8m0",
    "dequantize",
    "dequantize_fp4",
    "dequantize_fp8",
    "is_dequantizable",
    "is_quantizable",
    "quantize",
]

_FORMATS = plain.FORMATS | legacy.FORMATS | kquants.FORMATS | iquants.FORMATS | minifloat.FORMATS

DEQUANTIZABLE: frozenset[WeightType] = frozenset(_FORMATS)
QUANTIZABLE: frozenset[WeightType] = ENCODED

# Elements converted at a time: 256 KiB of float32, so that every pass over them stays in the L2 cache.
_CHUNK = 65536


def is_dequantizable(kind: WeightType) -> bool:
    return kind in DEQUANTIZABLE


def is_quantizable(kind: WeightType) -> bool:
    return kind in QUANTIZABLE


def dequantize(raw: Bytes, kind: WeightType) -> Floats:
    """Stored rows, uint8 [..., row bytes], as a new float32 array [..., columns].

    `raw` is only read and may be any view: unaligned, read-only, strided.  Damaged scales give what IEEE
    arithmetic makes of them (infinities, NaN), never an error.
    """
    block_format = _FORMATS.get(kind)
    if block_format is None:
        raise ValueError(f"{kind.name} data cannot be dequantized{_WHY_NOT.get(kind, '')}")
    if raw.dtype != np.uint8 or raw.ndim == 0:
        raise ValueError(f"{kind.name} data must be rows of uint8, not {raw.dtype} of shape {raw.shape}")
    if raw.shape[-1] % kind.block_bytes:
        raise ValueError(
            f"{kind.name} rows are whole blocks of {kind.block_bytes} bytes, not {raw.shape[-1]} bytes"
        )
    blocks: Blocks = np.ascontiguousarray(raw).reshape(-1).view(block_format.layout)  # [all blocks]
    out: Floats = np.empty((len(blocks), kind.block), np.float32)
    step = _CHUNK // kind.block
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(blocks), step):
            block_format.decode(blocks[start : start + step], out[start : start + step])
    return out.reshape(*raw.shape[:-1], raw.shape[-1] // kind.block_bytes * kind.block)


def quantize(values: Floats, kind: WeightType, importance: Floats | None = None, threads: int = 1) -> Bytes:
    """float32 [..., columns] as stored rows, a new uint8 array [..., row bytes].

    Where a type can say it in several ways, what is taken is the least Σ importance · error² that was found;
    `importance` [columns], all ones if not given.
    """
    if kind not in QUANTIZABLE:
        writable = ", ".join(sorted(kind.name for kind in QUANTIZABLE))
        raise ValueError(f"cannot write {kind.name} data, only {writable}")
    if values.dtype != np.float32 or values.ndim == 0:
        raise ValueError(f"only rows of float32 can be quantized, not {values.dtype} of shape {values.shape}")
    columns = values.shape[-1]
    shape = (*values.shape[:-1], kind.row_bytes(columns))
    rows = np.ascontiguousarray(values).reshape(-1, max(columns, 1))  # [all rows, columns]
    out, bad = encode_rows(
        *(rows.view(np.uint8), None, types.F32, columns, range(len(rows)), kind),
        importance=importance,
        limit=ANYTHING if kind.block == 1 else float(np.finfo(np.float32).max),
        threads=threads,
    )
    if bad is not None:
        raise ValueError(f"{kind.name} cannot store infinities or NaN")
    return out.reshape(shape)


_WHY_NOT = {
    types.FP8_E4M3: ": its scales are a tensor of their own, use dequantize_fp8",
    types.FP4_E2M1: ": its scales are a tensor of their own, use dequantize_fp4",
    types.E8M0: ": these are scales, use decode_e8m0",
    types.Q8_K: ": it only ever holds activations",
}
