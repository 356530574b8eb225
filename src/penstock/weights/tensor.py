"""A weight where it lies: what it is called, its type and shape, and which bytes of which file it is."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelFormatError
from penstock.weights.files import MappedFile
from penstock.weights.quants import DEQUANTIZABLE, dequantize, dequantize_fp4, dequantize_fp8
from penstock.weights.types import E8M0, F32, FP4_E2M1, FP8_E4M3, I32, I64, WeightType

FP8_BLOCK = 128  # one scale per 128 × 128 weights
FP4_GROUP = 32  # one scale per 32 consecutive weights of a row


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Name, type, shape (row-major, contiguous dimension last) and place of one tensor.

    FP8 and FP4 checkpoint tensors carry their block scales as a second tensor.
    """

    name: str
    kind: WeightType
    shape: tuple[int, ...]
    file: MappedFile
    offset: int
    nbytes: int
    scale: "TensorInfo | None" = None

    @property
    def end(self) -> int:
        return self.offset + self.nbytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the tensor and of its scales."""
        return self.nbytes + (self.scale.nbytes if self.scale else 0)

    def renamed(self, name: str) -> "TensorInfo":
        return replace(self, name=name)

    def rows(self, first: int, count: int) -> "TensorInfo":
        """Rows [first, first + count) of a matrix.  Where scales stand for blocks of rows, whole blocks."""
        columns, scale = self.shape[-1], self.scale
        row_bytes = self.kind.row_bytes(columns)
        if scale is not None:
            block = FP8_BLOCK if self.kind is FP8_E4M3 else 1
            scale = scale.rows(first // block, -(-count // block))
        offset = self.offset + first * row_bytes
        return TensorInfo(self.name, self.kind, (count, columns), self.file, offset, count * row_bytes, scale)

    def part(self, index: int, first_row: int = 0, rows: int | None = None) -> "TensorInfo":
        """Matrix `index` of a stack [n, out, in], or `rows` of its rows."""
        _, out, columns = self.shape
        if self.scale is not None:
            raise ModelFormatError(f"{self.name}: stacked tensors with separate scales are not supported")
        rows = out - first_row if rows is None else rows
        row_bytes = self.kind.row_bytes(columns)
        return TensorInfo(
            f"{self.name}[{index}]",
            self.kind,
            (rows, columns),
            self.file,
            self.offset + (index * out + first_row) * row_bytes,
            rows * row_bytes,
        )


class Weight:
    """A matrix (or vector) in its stored type; rows become float32 only when asked for.  shape: [out, in]

    Its bytes are the mapped file's unless others are given.
    """

    def __init__(
        self, info: TensorInfo, raw: NDArray[np.uint8] | None = None, scale: NDArray[np.uint8] | None = None
    ):
        self.info = info
        self.kind = info.kind
        self.shape = info.shape
        self.raw: NDArray[np.uint8]  # [out, row bytes]
        self.scale: NDArray[np.uint8] | None = None
        if raw is None:
            raw = info.file.view(info.offset, info.nbytes)
            if info.scale is not None:
                scale = info.scale.file.view(info.scale.offset, info.scale.nbytes)
        self.raw = raw.reshape(-1, self.kind.row_bytes(self.shape[-1]))
        if scale is not None:
            assert info.scale is not None
            self.scale = scale.reshape(info.scale.shape)

    @property
    def in_place(self) -> bool:
        """Whether `rows` costs nothing: float32 data used as it lies there."""
        return self.kind is F32 and self.raw.ctypes.data % 4 == 0

    def rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) as float32 [stop - start, in]."""
        raw = self.raw[start:stop]
        if self.kind is FP8_E4M3:
            assert self.scale is not None
            return dequantize_fp8(raw, self.scale, first_row=start)
        if self.kind is FP4_E2M1:
            assert self.scale is not None
            return dequantize_fp4(raw, self.scale[start:stop])
        if self.in_place:
            return raw.view(np.float32)
        return dequantize(raw, self.kind)

    def decode(self) -> NDArray[np.float32]:
        """All of it as float32, in its own shape.  For vectors and small matrices."""
        return self.rows(0, self.raw.shape[0]).reshape(self.shape)

    def integers(self) -> NDArray[np.int64]:
        """An integer table as int64."""
        if self.kind not in (I32, I64):
            raise ModelFormatError(
                f"{self.info.file.path}: tensor {self.info.name}: type {self.kind.name}, expected I32 or I64"
            )
        return self.raw.view("<i4" if self.kind is I32 else "<i8").reshape(self.shape).astype(np.int64)


def check_usable(info: TensorInfo) -> None:
    """Raises unless the tensor's type can be decoded and its scales, if it needs any, fit it."""
    where = f"{info.file.path}: tensor {info.name}"
    if info.kind not in (FP8_E4M3, FP4_E2M1):
        if info.kind not in DEQUANTIZABLE and info.kind not in (I32, I64):
            raise ModelFormatError(f"{where}: type {info.kind.name} cannot be used for weights")
        return
    if info.scale is None or info.scale.kind is not E8M0 or len(info.shape) != 2:
        raise ModelFormatError(f"{where}: {info.kind.name} needs a matrix with an E8M0 scale tensor")
    out, columns = info.shape
    expected: tuple[Any, ...]
    if info.kind is FP8_E4M3:
        expected = (-(-out // FP8_BLOCK), -(-columns // FP8_BLOCK))
    else:
        expected = (out, columns // FP4_GROUP)
    if info.scale.shape != expected or (info.kind is FP4_E2M1 and columns % FP4_GROUP):
        raise ModelFormatError(
            f"{where}: scale shape {list(info.scale.shape)}, expected {list(expected)} for {list(info.shape)}"
        )


def check_disjoint(tensors: Iterable[TensorInfo]) -> None:
    """Raises if two tensors of one file share bytes."""
    placed = sorted(tensors, key=lambda info: info.offset)
    for before, after in pairwise(placed):
        if before.end > after.offset:
            raise ModelFormatError(
                f"{after.file.path}: tensor {after.name} at byte {after.offset:,} overlaps {before.name}, "
                f"which ends at {before.end:,}"
            )
