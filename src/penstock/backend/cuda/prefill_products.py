"""Products of many rows with packed weights, as calls of kernels/prefill_product.cu and prefill_rows.cu.

>>> x = HalfRows.empty(rows, 4096)
>>> make_halves(hidden, x, norm, 1e-6)
>>> multiply([q_a, kv], x, [q, keys])

Inputs are float16 with a power of two for every row; where that is not enough, a second plane has what the first one
leaves over.
"""

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import floor, inf, log2
from typing import NamedTuple

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import FLOAT, INT, LONG, VOID, address
from penstock.backend.cuda.launch import Kernel, kernel, module
from penstock.backend.cuda.layouts import CELL, FP8_128, LAYOUTS
from penstock.backend.cuda.weights import Packed, iq2_xxs_grid
from penstock.weights import types
from penstock.weights.types import WeightType

MAX_SEGMENTS = 8
HALF_SCALE = 32.0  # as in prefill_product.cu
WIDTHS = tuple(range(128, 0, -16))  # inputs of a tile, as prefill_product.cu has them
MOST = WIDTHS[0]
_BLOCK_BYTES = MOST * 64 * 2  # X_BYTES: 64 columns of a tile's inputs
_PIECES = {types.F16: 4, types.BF16: 4, types.F32: 4}  # of a cell; all others are streamed cell by cell
# Of a cell, what lies step by step (`codes` of unpack.cuh); the two that are missing have it in another order
CODES = {
    types.Q8_0: 4096, types.Q6_K: 4096, FP8_128: 4096, types.Q4_K: 2048, types.MXFP4: 2048,
    types.F16: 8192, types.BF16: 8192, types.F32: 16384,
}  # fmt: skip
_GRID_BYTES = 256 * 8 * 16


class HalfRowsArgument(ctypes.Structure):
    _fields_ = (("halves", VOID), ("scales", VOID), ("plane", LONG), ("columns", INT), ("planes", INT))


@dataclass
class HalfRows:
    """Inputs [rows, width] as products of many rows want them; written by `make_halves` and by other kernels."""

    halves: (
        torch.Tensor
    )  # float16 [planes, rows, columns], 32 columns at a time in the order of `input_place`
    scales: torch.Tensor | None  # float32 [rows]; None: `scale` for all
    scale: float = 1.0

    @staticmethod
    def empty(rows: int, width: int, planes: int = 1) -> "HalfRows":
        columns = -(-width // CELL) * CELL
        halves = torch.zeros(planes, rows, columns, dtype=torch.float16, device="cuda")
        return HalfRows(halves, torch.empty(rows, device="cuda"))

    @property
    def planes(self) -> int:
        return self.halves.shape[0]

    @property
    def rows(self) -> int:
        return self.halves.shape[1]

    def argument(self) -> HalfRowsArgument:
        return HalfRowsArgument(
            address(self.halves),
            address(self.scales),
            self.halves.stride(0),
            self.halves.shape[2],
            self.planes,
        )


class _MakeHalves(ctypes.Structure):
    _fields_ = (
        ("x", VOID), ("norm", VOID), ("out", HalfRowsArgument), ("stride", INT), ("width", INT), ("eps", FLOAT),
    )  # fmt: skip


def make_halves(x: torch.Tensor, out: HalfRows, norm: torch.Tensor | None = None, eps: float = 0.0) -> None:
    """x [rows, width], normed if there is a norm → out"""
    rows, width = x.shape
    argument = _MakeHalves(address(x), address(norm), out.argument(), x.stride(0), width, eps)
    kernel("prefill_rows.cu", "make_halves").launch(rows, 256, (argument,))


class _Segment(ctypes.Structure):
    _fields_ = (
        ("weights", VOID), ("out", VOID), ("halves", VOID), ("acts", VOID), ("tiles", INT), ("rows", INT),
        ("stride", INT), ("apart", INT),
    )  # fmt: skip


class _Product(ctypes.Structure):
    _fields_ = (
        ("segments", _Segment * MAX_SEGMENTS), ("x", VOID), ("scales", VOID), ("gather", VOID), ("tiles", VOID),
        ("tile_count", VOID), ("factors", VOID), ("grid", VOID), ("plane", LONG), ("x_stride", INT),
        ("x_matrix", INT),
        ("scale_stride", INT), ("scale_matrix", INT), ("count", INT), ("matrices", INT), ("cells", INT),
        ("passes", INT), ("items", INT), ("each", INT), ("stages", INT), ("x_scale", FLOAT), ("limit", FLOAT),
        ("act_up", FLOAT),
    )  # fmt: skip


@dataclass
class Items:
    """Rows of inputs sorted by the matrix that they go to: what `prefill_experts.Groups` has worked out."""

    tiles: torch.Tensor  # int32 [most, 3]: matrix, first item, count
    tile_count: torch.Tensor  # int32 [1]
    gather: torch.Tensor | None  # int32 [items]: the row of an item; None: items are rows
    factors: torch.Tensor | None = None  # float32 [items]: what results are multiplied with


class _Form(NamedTuple):
    """How the product is cut on this card."""

    tiles: int  # of sixteen rows of weights, to a block
    threads: int
    stages: int  # of weights; where warps multiply by themselves, of inputs too
    shared: int  # bytes
    options: tuple[str, ...] = ()


def form_of(kind: WeightType, warpgroups: bool, room: int) -> _Form:
    """For a card whose blocks have `room` bytes of shared memory: as prefill_product_wgmma.cuh or _mma.cuh has it."""
    cell, grid = LAYOUTS[kind].cell_bytes, _GRID_BYTES if kind is types.IQ2_XXS else 0
    if warpgroups:
        stage, fixed = 16 * cell // _PIECES.get(kind, 1), 1024 + 5 * _BLOCK_BYTES + grid
        stages = min(4, (room - fixed) // stage)
        return _Form(16, 640, stages, fixed + stages * stage)
    tiles, codes = 8 if kind is types.F32 else 16, CODES.get(kind, 0)
    stage, fixed = _BLOCK_BYTES + tiles * codes // 4, grid + 2 * tiles * (cell - codes)
    stages = min(4, (room - fixed) // stage)
    return _Form(tiles, 16 * tiles, stages, fixed + stages * stage, (f"-DSTAGES={stages}",))


@cache
def _kernel(kind: WeightType, paired: bool) -> tuple[Kernel, _Form]:
    """The product for one format."""
    form = form_of(kind, card().warpgroups, card().shared_limit)
    options = (f"-DWEIGHT_FORMAT={LAYOUTS[kind].number}", f"-DGATE_UP={int(paired)}", *form.options)
    return module("prefill_product.cu", *options).kernel("prefill_product", form.shared), form


def prepare(kinds: Iterable[tuple[WeightType, bool]]) -> None:
    """Begins to compile the products for these formats, paired or not: it takes some seconds."""
    for kind, paired in kinds:
        _kernel(kind, paired)


def _passes(kind: WeightType, planes: int) -> int:
    """Floats are two planes of weights: their first with both planes of inputs, their second with the first."""
    return planes + 1 if kind is types.F32 else planes


def _width(units: int, rows: int) -> int:
    """The tile that leaves the fewest multiprocessors without work at the end; a step costs as much as 32 inputs."""
    blocks = card().multiprocessors
    return min(WIDTHS, key=lambda n: -(-(units * -(-rows // n)) // blocks) * (n + 32))


def _launch(
    matrices: Sequence[Packed], segments: list[_Segment], x: HalfRows, planes: int, items: Items | None, rows: int,
    x_stride: int, x_matrix: int, scale_stride: int, scale_matrix: int, limit: float = inf, act_up: float = 1.0,
) -> None:  # fmt: skip
    first = matrices[0]
    if any((m.kind, m.columns, m.paired) != (first.kind, first.columns, first.paired) for m in matrices):
        raise ValueError("matrices of one launch have one format and the same columns")
    if first.cells * CELL > x.halves.shape[2] or planes > x.planes:
        raise ValueError(f"{first.columns} columns in {planes} planes, of inputs {list(x.halves.shape)}")
    product, form = _kernel(first.kind, first.paired)
    share = form.tiles // 2 if first.paired else form.tiles
    units = sum(-(-m.tiles // share) for m in matrices)
    each = _width(units * first.count, rows)
    work = units * (len(items.tiles) if items else first.count * -(-rows // each))
    grid = iq2_xxs_grid() if first.kind is types.IQ2_XXS else None
    argument = _Product(
        (_Segment * MAX_SEGMENTS)(*segments), address(x.halves), address(x.scales),
        address(items.gather if items else None), address(items.tiles if items else None),
        address(items.tile_count if items else None), address(items.factors if items else None), address(grid),
        x.halves.stride(0), x_stride, x_matrix, scale_stride, scale_matrix, len(segments), first.count, first.cells,
        _passes(first.kind, planes), rows, each, form.stages, x.scale, limit, act_up,
    )  # fmt: skip
    product.launch(min(card().multiprocessors, work), form.threads, (argument,))


def _plain(m: Packed, out: torch.Tensor, apart: int = 0) -> _Segment:
    floats, halves = (0, address(out)) if out.dtype == torch.float16 else (address(out), 0)
    return _Segment(address(m.data), floats, halves, 0, m.tiles, m.rows, out.stride(0), apart)


def multiply(
    matrices: Sequence[Packed], x: HalfRows, outs: Sequence[torch.Tensor], planes: int = 1,
    items: Items | None = None,
) -> None:  # fmt: skip
    """outs [rows, rows of the matrix] each.  With `items` the matrix is one of many, and outs are [items, …].

    A float16 out is the product divided by the row's scale and by HALF_SCALE, which whoever reads it has to undo."""
    columns = x.halves.shape[2]
    by_kind: dict[WeightType, list[int]] = {}
    for i, m in enumerate(matrices):
        by_kind.setdefault(m.kind, []).append(i)
    for kind, numbers in by_kind.items():
        some = [matrices[i] for i in numbers]
        segments = [_plain(matrices[i], outs[i]) for i in numbers]
        own = x.planes if kind is types.F32 else planes
        _launch(some, segments, x, own, items, len(outs[numbers[0]]), columns, 0, 1, 0)


def multiply_groups(matrix: Packed, x: HalfRows, out: torch.Tensor) -> None:
    """Group g of the columns with matrix g: x [rows · groups, …] or [rows, groups · …] → out [rows, groups · …]"""
    groups, rows = matrix.count, len(out)
    columns = x.halves.shape[2]
    own = columns if x.rows == rows * groups else columns // groups  # a group's columns
    scales = (groups, 1) if x.rows == rows * groups else (1, 0)
    planes = x.planes if matrix.kind is types.F32 else 1
    segments = [_plain(matrix, out, matrix.rows)]
    _launch([matrix], segments, x, planes, None, rows, own * groups, own, *scales)


def act_scale(limit: float) -> float:
    """The power of two that keeps swiglu of numbers up to `limit` below 32768."""
    return 2.0 ** max(0, min(12, floor(15 - 2 * log2(limit)))) if limit < 1e4 else 1.0


def multiply_swiglu(
    matrix: Packed, x: HalfRows, out: HalfRows, limit: float, items: Items | None = None
) -> None:  # fmt: skip
    """swiglu(gate, up) of a paired matrix → out, whose scale is `act_scale(limit)`'s inverse"""
    segment = _Segment(
        address(matrix.data), 0, 0, address(out.halves), matrix.tiles, matrix.rows, out.halves.shape[2], 0
    )
    planes = x.planes if matrix.kind is types.F32 else 1
    out.scales, out.scale = None, 1 / act_scale(limit)
    _launch(
        [matrix], [segment], x, planes, items, out.rows, x.halves.shape[2], 0, 1, 0, limit, act_scale(limit)
    )
