"""Weights in another type, by the native encoders (native/encode.h)."""

import ctypes
from typing import Final

import numpy as np

from penstock.native import structs
from penstock.native.library import instruction_set, native
from penstock.weights import types
from penstock.weights.quants.block import Bytes, Floats
from penstock.weights.types import WeightType

ENCODED: Final = frozenset(
    {
        *(types.F32, types.F16, types.BF16, types.Q8_0, types.MXFP4),
        *(types.Q2_K, types.Q3_K, types.Q4_K, types.Q5_K, types.Q6_K, types.IQ2_XXS),
        *(types.Q4_0, types.Q5_0, types.Q5_1, types.IQ4_NL),
    }
)

# Types that are decoded natively too, with their numbers in products.h.
DECODED: Final = {
    **{kind: kind.ggml_id for kind in (types.F32, types.F16, types.BF16, types.Q8_0, types.MXFP4)},
    types.FP8_E4M3: 1000,
    types.FP4_E2M1: 1001,
}
ANYTHING: Final = -1.0  # a limit: infinities and NaN too


def encode_rows(
    raw: Bytes,
    scale: Bytes | None,
    kind: WeightType,
    columns: int,
    rows: range,
    target: WeightType,
    *,
    importance: Floats | None = None,
    limit: float = ANYTHING,
    threads: int = 1,
) -> tuple[Bytes, int | None]:
    """`rows` of a stored matrix of `columns` as `target`: [rows, row bytes].  `importance` [columns] says how much
    the square of each column's error counts.  The second result is the first row with a number beyond `limit`, or
    none."""
    instruction_set()  # a bad PENSTOCK_ISA is said here and not in the middle
    out: Bytes = np.empty((len(rows), target.row_bytes(columns)), np.uint8)
    if out.size == 0:
        return out, None
    if importance is not None:
        importance = np.ascontiguousarray(importance, np.float32)
        assert importance.shape == (columns,)
    weight = structs.Weight(
        raw.ctypes.data, None if scale is None else scale.ctypes.data, DECODED[kind], rows.stop, columns
    )
    bad = native().ps_encode(
        *(ctypes.addressof(weight), rows.start, rows.stop, target.ggml_id),
        *(None if importance is None else importance.ctypes.data, limit, out.ctypes.data, threads),
    )
    return out, None if bad < 0 else int(bad)
