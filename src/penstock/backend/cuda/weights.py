"""Matrices on the card, in the cells of `layouts`.

>>> gate_up = repack_pair(gate, up, types.IQ2_XXS, rows=2048, columns=4096, count=256)
"""

import ctypes
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from penstock.backend.cuda.launch import module
from penstock.backend.cuda.layouts import CELL, LAYOUTS, TILE
from penstock.weights.quants.grids import grid
from penstock.weights.types import WeightType


@dataclass(frozen=True)
class Packed:
    """`count` matrices [rows, columns] of one format; `paired`: each is gate and up, tile by tile."""

    data: torch.Tensor  # uint8, count · tiles · cells (twice if paired) · cell bytes
    kind: WeightType
    rows: int
    columns: int
    count: int = 1
    paired: bool = False

    @property
    def tiles(self) -> int:
        return -(-self.rows // TILE)

    @property
    def cells(self) -> int:
        return -(-self.columns // CELL)

    @property
    def nbytes(self) -> int:
        return self.data.numel()


class RepackArgument(ctypes.Structure):
    _fields_ = (
        ("raw", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("row_bytes", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("tiles", ctypes.c_int32),
        ("cells", ctypes.c_int32),
        ("tile_cells", ctypes.c_int32),
        ("first_cell", ctypes.c_int32),
    )


def empty(
    kind: WeightType, rows: int, columns: int, count: int = 1, paired: bool = False, device: str = "cuda"
) -> Packed:
    """Memory for `count` matrices, each in whole tiles."""
    tiles, cells = -(-rows // TILE), -(-columns // CELL)
    size = count * tiles * cells * (2 if paired else 1) * LAYOUTS[kind].cell_bytes
    return Packed(torch.empty(size, dtype=torch.uint8, device=device), kind, rows, columns, count, paired)


def repack_argument(
    raw: int, to: Packed, rows: int, first_tile: int = 0, second: bool = False
) -> RepackArgument:
    """Stored rows at the address `raw` into the tiles from `first_tile` on; `second`: the ups."""
    cells = to.cells * (2 if to.paired else 1)
    start = first_tile * cells * LAYOUTS[to.kind].cell_bytes
    return RepackArgument(
        raw, to.data.data_ptr() + start, to.kind.row_bytes(to.columns), rows, -(-rows // TILE), to.cells, cells,
        to.cells if second else 0,
    )  # fmt: skip


def repack_into(to: Packed, raw: torch.Tensor, first_tile: int = 0, second: bool = False) -> None:
    """Stored rows on the card, uint8 [rows, row bytes], into the tiles from `first_tile` on; `second`: the ups."""
    argument = repack_argument(raw.data_ptr(), to, len(raw), first_tile, second)
    kernel = module("repack.cu").kernel(f"repack_{to.kind.name.lower()}")
    kernel.launch(grid=-(-argument.tiles * to.cells // 8), block=256, args=(argument,))


def repack(raw: torch.Tensor, kind: WeightType, rows: int, columns: int, count: int = 1) -> Packed:
    packed = empty(kind, rows, columns, count)
    repack_into(packed, raw)
    return packed


def repack_pair(
    gate: torch.Tensor, up: torch.Tensor, kind: WeightType, rows: int, columns: int, count: int = 1
) -> Packed:
    packed = empty(kind, rows, columns, count, paired=True)
    repack_into(packed, gate)
    repack_into(packed, up, second=True)
    return packed


@cache
def iq2_xxs_grid() -> torch.Tensor:
    """The 256 vectors of eight bytes."""
    return torch.from_numpy(grid("IQ2_XXS").astype(np.uint8)).cuda()
