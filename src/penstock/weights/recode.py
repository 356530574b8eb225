"""Stored weights as the bytes of another type, a slab of rows at a time.

Nothing passes through floats that need not: equal types are copied, checkpoint FP4 becomes MXFP4 by moving
nibbles.  A number that the target cannot hold is an error that names the tensor, never an infinity.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from penstock.errors import ModelFormatError
from penstock.weights.quants import fp4_to_mxfp4, quantize
from penstock.weights.quants.block import Bytes, Floats
from penstock.weights.tensor import TensorInfo, Weight
from penstock.weights.types import BF16, F16, F32, FP4_E2M1, FP8_E4M3, I32, I64, MXFP4, Q8_0, WeightType

SLAB_ELEMENTS: Final = 4 << 20  # 16 MiB of float32; the encoders need a few times that

F32_LARGEST: Final = float(np.finfo(np.float32).max)
LARGEST: Final[dict[WeightType, float]] = {
    F16: 65504.0,
    BF16: float.fromhex("0x1.FEp127"),
    Q8_0: 127 * 65504.0,  # the block scale is a float16
}  # largest magnitude a type holds, where it is not that of float32

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


def recode(info: TensorInfo, target: WeightType) -> Iterator[Bytes]:
    """The rows of a matrix (or a vector, which is one row) in order."""
    weight = Weight(info)
    for start, stop in _slabs(len(weight.raw), info.shape[-1]):
        if info.kind is target:
            yield weight.raw[start:stop]
        elif info.kind is FP4_E2M1 and target is MXFP4:
            yield _repack(info, weight.raw, start, stop)
        else:
            yield _encode(weight.rows(start, stop), target, info)


def recode_side_by_side(left: TensorInfo, right: TensorInfo, target: WeightType) -> Iterator[Bytes]:
    """The rows of [left | right], two matrices of the same height."""
    a, b = Weight(left), Weight(right)
    for start, stop in _slabs(left.shape[0], left.shape[1] + right.shape[1]):
        yield _encode(np.concatenate((a.rows(start, stop), b.rows(start, stop)), axis=1), target, left)


def recode_table(info: TensorInfo, limit: int) -> Iterator[Bytes]:
    """A table of expert numbers below `limit`, as I32."""
    table = Weight(info).integers()
    if table.min() < 0 or table.max() >= limit:
        wrong = table.min() if table.min() < 0 else table.max()
        raise ModelFormatError(f"{_where(info)}: entry {wrong}, expected expert numbers below {limit}")
    yield table.astype("<i4").view(np.uint8)


def _slabs(rows: int, columns: int) -> Iterator[tuple[int, int]]:
    step = max(1, SLAB_ELEMENTS // columns)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def _repack(info: TensorInfo, raw: Bytes, start: int, stop: int) -> Bytes:
    assert info.scale is not None
    scale = info.scale.file.view(info.scale.offset, info.scale.nbytes).reshape(info.scale.shape)
    try:
        return fp4_to_mxfp4(raw[start:stop], scale[start:stop])
    except ValueError as error:
        raise ModelFormatError(f"{_where(info)}: {error}") from None


def _encode(values: Floats, target: WeightType, info: TensorInfo) -> Bytes:
    limit = LARGEST.get(target, F32_LARGEST)
    low, high = float(values.min()), float(values.max())
    if not (-limit <= low and high <= limit):  # false for NaN too
        extreme = low if not -limit <= low else high
        raise ModelFormatError(
            f"{_where(info)}: holds {extreme:g}, but {target.name} ends at {limit:g}. Choose another mix."
        )
    return quantize(values, target)


def _where(info: TensorInfo) -> str:
    return f"{info.file.path}: tensor {info.name}"
