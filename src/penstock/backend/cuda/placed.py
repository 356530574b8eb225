"""Weights on the card: what a stored type becomes there, and how its bytes get there.

A matrix lies in the cells of `layouts` where its type has a layout, or row by row where kernels read single rows.
Other types are re-encoded on the way: FP4 blocks are MXFP4's in another order, FP8 weights get their scales between
them, and everything else becomes F32, which holds every value exactly.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.base import Bytes, DeviceExpert, ExpertStack, SlicedWeight
from penstock.backend.cuda.layouts import FP8_128, LAYOUTS, TILE, packed_shape
from penstock.backend.cuda.plain import StoredRows
from penstock.backend.cuda.routing import MAX_COUNT, MAX_EXPERTS
from penstock.backend.cuda.weights import Packed, empty, repack_into
from penstock.weights import types
from penstock.weights.tensor import TensorInfo, Weight
from penstock.weights.types import WeightType

DENSE_KINDS: Final = frozenset(LAYOUTS) - {types.IQ2_XXS}  # of kernels/dense.cu
EXPERT_KINDS: Final = frozenset({types.IQ2_XXS, types.Q2_K, types.Q4_K, types.Q6_K, types.MXFP4, types.Q8_0})
ROW_KINDS: Final = frozenset({types.F32, types.F16, types.BF16})
TABLE_KINDS: Final = ROW_KINDS | {types.Q8_0}
MAX_COLUMNS: Final = 64 * 256  # of a product's inputs


def packed_kind(info: TensorInfo) -> WeightType:
    """What a matrix is on the card."""
    if info.kind is types.FP4_E2M1:
        return types.MXFP4
    if info.kind is types.FP8_E4M3 and info.shape[1] % FP8_128.block == 0:
        return FP8_128
    return info.kind if info.kind in DENSE_KINDS else types.F32


def row_kind(kind: WeightType, kinds: frozenset[WeightType] = ROW_KINDS) -> WeightType:
    """What a matrix of this type is on the card where kernels read single rows."""
    return kind if kind in kinds else types.F32


def packed_bytes(kind: WeightType, rows: int, columns: int) -> int:
    tiles, cells, size = packed_shape(kind, rows, columns)
    return tiles * cells * size


def encoded(info: TensorInfo, raw: Bytes, scale: Bytes | None, kind: WeightType) -> Bytes:
    """Stored rows as rows of `kind`: uint8 [rows, row bytes]"""
    rows, columns = info.shape
    if info.kind is kind:
        return raw.reshape(rows, -1)
    if info.kind is types.FP4_E2M1 and kind is types.MXFP4:
        assert scale is not None
        return _fp4_blocks(raw.reshape(rows, -1), scale.reshape(rows, -1))
    if kind is FP8_128:
        assert scale is not None
        return _fp8_groups(raw.reshape(rows, -1), scale.reshape(-1, columns // FP8_128.block))
    decoded = Weight(info, raw, scale).rows(0, rows)
    return np.ascontiguousarray(decoded, np.float32).view(np.uint8).reshape(rows, 4 * columns)


def _fp4_blocks(codes: Bytes, exponents: Bytes) -> Bytes:
    """Two neighbours to a byte, the first in the low half → a block of 32 with its exponent first, in which byte i
    holds numbers i and i + 16."""
    rows = len(codes)
    pairs = codes.reshape(rows, -1, 16)
    nibbles: Bytes = np.empty((*pairs.shape[:2], 32), np.uint8)
    nibbles[..., 0::2], nibbles[..., 1::2] = pairs & 15, pairs >> 4
    block: Bytes = np.empty((*pairs.shape[:2], 17), np.uint8)
    block[..., 0] = exponents
    block[..., 1:] = nibbles[..., :16] | nibbles[..., 16:] << 4
    return block.reshape(rows, -1)


def _fp8_groups(codes: Bytes, exponents: Bytes) -> Bytes:
    """exponents: of 128 rows each → every 128 codes with their exponent before them"""
    rows = len(codes)
    out: Bytes = np.empty((rows, exponents.shape[1], 129), np.uint8)
    out[..., 0] = np.repeat(exponents, 128, axis=0)[:rows]
    out[..., 1:] = codes.reshape(rows, -1, 128)
    return out.reshape(rows, -1)


def to_card(raw: Bytes) -> torch.Tensor:
    """uint8 [rows, bytes].  Of pinned memory the copy may still be under way."""
    return torch.from_numpy(np.ascontiguousarray(raw)).to("cuda", non_blocking=True)


class CudaWeight(SlicedWeight):
    """Ops say once, when they are made, in which form they want it; its bytes come later."""

    def __init__(self, info: TensorInfo):
        self.info = info
        self._kind: WeightType | None = None
        self._put: Callable[[int, torch.Tensor], None] | None = None
        self._packed: Packed | None = None

    def packed(self, groups: int = 1) -> Packed:
        """In cells; `groups`: as so many matrices one behind the other."""
        if self._packed is None or self._packed.count != groups:
            rows, columns = self.info.shape
            kind = self._taken(packed_kind(self.info))
            self._packed = packed = empty(kind, rows // groups, columns, groups)
            self._put = lambda first, raw: _put_rows(packed, first, raw)
        return self._packed

    @staticmethod
    def pair(gate: "CudaWeight", up: "CudaWeight") -> Packed:
        """Gate and up tile by tile, for products that end in the activation."""
        rows, columns = gate.info.shape
        kind = packed_kind(gate.info)
        if packed_kind(up.info) is not kind:
            kind = types.F32
        packed = empty(gate._taken(kind), rows, columns, paired=True)
        up._taken(kind)
        gate._put = lambda first, raw: _put_rows(packed, first, raw)
        up._put = lambda first, raw: _put_rows(packed, first, raw, second=True)
        return packed

    def stored(self, kinds: frozenset[WeightType] = ROW_KINDS) -> StoredRows:
        """Row by row."""
        rows, columns = self.info.shape
        kind = self._kind = row_kind(self.info.kind, kinds)
        data = torch.empty(rows, kind.row_bytes(columns), dtype=torch.uint8, device="cuda")

        def put(first: int, raw: torch.Tensor) -> None:
            data[first : first + len(raw)] = raw

        self._put = put
        return StoredRows(data, kind, rows, columns)

    def _taken(self, kind: WeightType) -> WeightType:
        if self.info.shape[1] > MAX_COLUMNS:
            raise ValueError(
                f"{self.info.name}: {self.info.shape[1]:,} columns, the GPU's products take {MAX_COLUMNS:,}"
            )
        self._kind = kind
        return kind

    @property
    def slices(self) -> bool:
        return self._packed is None or self._packed.count == 1 or self._packed.rows % TILE == 0

    def place(self, raw: Bytes, scale: Bytes | None = None) -> None:
        self.place_rows(self.info, 0, raw, scale)

    def place_rows(self, info: TensorInfo, first: int, raw: Bytes, scale: Bytes | None = None) -> None:
        if self._put is None:
            self.packed()
        assert self._put is not None
        assert self._kind is not None
        self._put(first, to_card(encoded(info, raw, scale, self._kind)))


def _put_rows(to: Packed, first: int, raw: torch.Tensor, second: bool = False) -> None:
    """Rows [first, …) of all matrices one behind the other."""
    if to.count == 1 or to.rows % TILE == 0:
        repack_into(to, raw, first // TILE, second=second)
        return
    tiles = to.tiles
    for matrix in range(len(raw) // to.rows):
        part = raw[matrix * to.rows : (matrix + 1) * to.rows]
        repack_into(to, part, (first // to.rows + matrix) * tiles, second=second)


class CudaExpert(DeviceExpert):
    """A shared expert."""

    def __init__(self, gate: CudaWeight, up: CudaWeight, down: CudaWeight):
        width, hidden = gate.info.shape
        if up.info.shape != (width, hidden) or down.info.shape != (hidden, width):
            raise ValueError(f"{gate.info.name}: gate, up and down do not fit each other")
        self.gate_up, self.down = CudaWeight.pair(gate, up), down.packed()


class CudaExpertStack(ExpertStack):
    """All experts of a layer: gate and up tile by tile, and down, in cells; or all three row by row."""

    def __init__(self, experts: Sequence[Sequence[TensorInfo]], used: int):
        gates, ups, downs = (list(infos) for infos in zip(*experts, strict=True))
        (width, hidden), count = gates[0].shape, len(experts)
        self.kinds = [_one_kind(infos) for infos in (gates, ups, downs)]
        self.fast = stack_is_fast(self.kinds, hidden, width, count, used)
        self.gate_up: Packed | None = None
        self.down: Packed | None = None
        self.plain: list[StoredRows] = []
        if self.fast:
            self.gate_up = empty(self.kinds[0], width, hidden, count, paired=True)
            self.down = empty(self.kinds[2], hidden, width, count)
            return
        self.kinds = [row_kind(kind) for kind in self.kinds]
        for kind, (rows, columns) in zip(
            self.kinds, ((width, hidden), (width, hidden), (hidden, width)), strict=True
        ):
            data = torch.empty(count * rows, kind.row_bytes(columns), dtype=torch.uint8, device="cuda")
            self.plain.append(StoredRows(data, kind, rows, columns))

    def place(self, part: int, first: int, info: TensorInfo, raw: Bytes, scale: Bytes | None = None) -> None:
        data = to_card(encoded(info, raw, scale, self.kinds[part]))
        if self.gate_up is None or self.down is None:
            to = self.plain[part]
            to.data[first * to.rows : first * to.rows + len(data)] = data
        elif part == 2:
            _put_rows(self.down, first * self.down.rows, data)
        else:
            _put_rows(self.gate_up, first * self.gate_up.rows, data, second=part == 1)


def expert_kind(info: TensorInfo) -> WeightType:
    """What a matrix of an expert is on the card, if that has a fast product."""
    return types.MXFP4 if info.kind is types.FP4_E2M1 else info.kind


def _one_kind(infos: Sequence[TensorInfo]) -> WeightType:
    """What experts are on the card, before it is known whether that has a fast product."""
    kinds = {expert_kind(info) for info in infos}
    return kinds.pop() if len(kinds) == 1 else types.F32


def stack_is_fast(kinds: Sequence[WeightType], hidden: int, width: int, experts: int, used: int) -> bool:
    return (
        kinds[0] is kinds[1]
        and {kinds[0], kinds[2]} <= EXPERT_KINDS
        and max(hidden, width) <= MAX_COLUMNS
        and experts <= MAX_EXPERTS
        and used <= MAX_COUNT
    )


def experts_are_fast(experts: Sequence[Sequence[TensorInfo]], used: int) -> bool:
    """Whether a layer's experts, each (gate, up, down), lie in cells."""
    kinds = [_one_kind(list(infos)) for infos in zip(*experts, strict=True)]
    width, hidden = experts[0][0].shape
    return stack_is_fast(kinds, hidden, width, len(experts), used)


def stack_bytes(experts: Sequence[Sequence[TensorInfo]], used: int) -> int:
    """Memory of a `CudaExpertStack`."""
    parts = [list(infos) for infos in zip(*experts, strict=True)]
    kinds = [_one_kind(infos) for infos in parts]
    (width, hidden), count = parts[0][0].shape, len(experts)
    shapes = ((width, hidden), (width, hidden), (hidden, width))
    if stack_is_fast(kinds, hidden, width, count, used):
        return sum(count * packed_bytes(kind, *shape) for kind, shape in zip(kinds, shapes, strict=True))
    return sum(count * row_kind(kind).nbytes(shape) for kind, shape in zip(kinds, shapes, strict=True))


def vector(values: NDArray[np.float32]) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.float32).copy()).cuda()
