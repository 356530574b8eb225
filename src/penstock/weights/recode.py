"""Stored weights as the bytes of another type, a slab of rows at a time.

Nothing passes through floats that need not: equal types are copied, checkpoint FP4 becomes MXFP4 by moving
nibbles.  A number that the target cannot hold is an error that names the tensor, never an infinity.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np

from penstock.errors import ModelFormatError
from penstock.weights import types
from penstock.weights.gguf_header import Piece
from penstock.weights.quants.block import Bytes, Floats
from penstock.weights.quants.encode import DECODED, encode_rows
from penstock.weights.tensor import TensorInfo, Weight
from penstock.weights.types import BF16, F16, F32, FP4_E2M1, FP8_E4M3, I32, I64, MXFP4, WeightType

SLAB_ELEMENTS: Final = 4 << 20  # 16 MiB of float32, where a type is not decoded a row at a time

HALF: Final = 65504.0  # the largest float16: what scales are stored in
F32_LARGEST: Final = float(np.finfo(np.float32).max)
LARGEST: Final[dict[WeightType, float]] = {
    F16: HALF,
    BF16: float.fromhex("0x1.FEp127"),
    types.Q8_0: 127 * HALF,
    types.Q4_0: 7 * HALF,
    types.Q5_0: 15 * HALF,
    types.Q5_1: HALF,
    types.IQ4_NL: 113 * HALF,
    types.Q2_K: 15 * HALF,
    types.Q3_K: 3 * 31 * HALF,
    types.Q4_K: 63 * HALF,
    types.Q5_K: 63 * HALF,
    types.Q6_K: 31 * 127 * HALF,
    types.IQ2_XXS: 43 * HALF,
}  # largest magnitude a type holds on either side, where it is not that of float32

# Both checkpoint formats have at most four significant bits, BF16 has eight and the exponents of float32.
_WIDENED: Final = {(FP8_E4M3, BF16), (FP4_E2M1, BF16), (I64, I32)}


def is_exact(source: WeightType, target: WeightType) -> bool:
    """Whether every number survives: the same type, a wider one, or the same numbers packed differently."""
    return (
        source is target
        or target is F32
        or (source is FP4_E2M1 and target is MXFP4)
        or (source, target) in _WIDENED
    )


def recode(
    info: TensorInfo, target: WeightType, importance: Floats | None = None, threads: int = 1
) -> Iterator[Piece]:
    """The rows of a matrix (or a vector, which is one row) in order.

    `importance` [parts, columns]: how much the square of each column's error counts, in each of as many equal parts
    of the rows.
    """
    weight = Weight(info)
    rows, parts = len(weight.raw), 1 if importance is None else len(importance)
    for part in range(parts):
        own = None if importance is None else importance[part]
        for start, stop in _slabs(rows * part // parts, rows * (part + 1) // parts, info.shape[-1]):
            nbytes = (stop - start) * target.row_bytes(info.shape[-1])
            yield Piece(nbytes, partial(_recoded, weight, range(start, stop), target, own, threads))


def recode_side_by_side(
    left: TensorInfo,
    right: TensorInfo,
    target: WeightType,
    importance: Floats | None = None,
    threads: int = 1,
) -> Iterator[Piece]:
    """The rows of [left | right], two matrices of the same height."""
    a, b = Weight(left), Weight(right)
    columns = left.shape[1] + right.shape[1]
    own = None if importance is None else importance[0]

    def make(start: int, stop: int) -> Bytes:
        values = np.concatenate((a.rows(start, stop), b.rows(start, stop)), axis=1)
        return _encoded(values, left, target, own, threads)

    for start, stop in _slabs(0, left.shape[0], columns):
        yield Piece((stop - start) * target.row_bytes(columns), partial(make, start, stop))


def recode_table(info: TensorInfo, limit: int) -> Iterator[Bytes]:
    """A table of expert numbers below `limit`, as I32."""
    table = Weight(info).integers()
    if table.min() < 0 or table.max() >= limit:
        wrong = table.min() if table.min() < 0 else table.max()
        raise ModelFormatError(f"{_where(info)}: entry {wrong}, expected expert numbers below {limit}")
    yield table.astype("<i4").view(np.uint8)


def _slabs(first: int, last: int, columns: int) -> Iterator[tuple[int, int]]:
    step = max(1, SLAB_ELEMENTS // columns)
    for start in range(first, last, step):
        yield start, min(start + step, last)


def _recoded(
    weight: Weight, rows: range, target: WeightType, importance: Floats | None, threads: int
) -> Bytes:
    row_bytes = weight.raw.shape[1]
    weight.info.file.expect(weight.info.offset + rows.start * row_bytes, len(rows) * row_bytes)
    if weight.kind is target:
        return weight.raw[rows.start : rows.stop]
    if weight.kind not in DECODED:
        return _encoded(weight.rows(rows.start, rows.stop), weight.info, target, importance, threads)
    limit = LARGEST.get(target, F32_LARGEST)
    out, bad = encode_rows(
        *(weight.raw, weight.scale, weight.kind, weight.shape[-1], rows, target),
        importance=importance,
        limit=limit,
        threads=threads,
    )
    if bad is not None:
        raise _beyond(weight.rows(bad, bad + 1), weight.info, target, limit)
    return out


def _encoded(
    values: Floats, info: TensorInfo, target: WeightType, importance: Floats | None, threads: int
) -> Bytes:
    values, limit = np.ascontiguousarray(values), LARGEST.get(target, F32_LARGEST)
    out, bad = encode_rows(
        *(values.view(np.uint8), None, F32, values.shape[1], range(len(values)), target),
        importance=importance,
        limit=limit,
        threads=threads,
    )
    if bad is not None:
        raise _beyond(values[bad : bad + 1], info, target, limit)
    return out


def _beyond(row: Floats, info: TensorInfo, target: WeightType, limit: float) -> ModelFormatError:
    low, high = float(row.min()), float(row.max())
    extreme = low if not -limit <= low else high  # NaN is both
    return ModelFormatError(
        f"{_where(info)}: holds {extreme:g}, but {target.name} ends at {limit:g}. Choose another mix."
    )


def _where(info: TensorInfo) -> str:
    return f"{info.file.path}: tensor {info.name}"
