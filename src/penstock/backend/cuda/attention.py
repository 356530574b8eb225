"""State and attention of a decode step, as typed calls of kernels/state.cu, indexer.cu and attention.cu.

Rows of a launch are tokens: positions [rows], and states [rows], the address of the memory of each row's sequence,
lie on the card, so that one graph serves every position and every sequence.
"""

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import DIGITS, FLOAT, INT, LONG, VOID, Image, address
from penstock.backend.cuda.launch import module

ROW_KINDS = {"f32": 0, "f16": 1, "bf16": 2}  # RowKind of kernels/common.cuh
MAX_DIM = 2048  # of rows, in state.cu
CLUSTER = 8  # blocks that share a row's keys, in attention.cu


class RowsAt(NamedTuple):
    """Where rows of one kind begin in the memory of a sequence, how far they lie apart, in bytes, and how many there
    is room for."""

    at: int
    apart: int
    capacity: int


class RowsArgument(ctypes.Structure):
    _fields_ = (("at", LONG), ("apart", INT), ("capacity", INT))


def rows_argument(rows: RowsAt | None) -> RowsArgument:
    return RowsArgument(*rows) if rows is not None else RowsArgument()


@dataclass
class Places:
    """Where the rows of a step stand."""

    positions: torch.Tensor  # int32 [rows]
    states: torch.Tensor  # int64 [rows]: addresses
    frequencies: torch.Tensor  # float32 [rope / 2], the layer's
    turns: torch.Tensor  # float32 [rows, rope / 2, 2], written by `MakeTurns`

    @property
    def rows(self) -> int:
        return len(self.positions)

    @property
    def rope(self) -> int:
        return 2 * len(self.frequencies)

    def part(self, first: int, last: int) -> "Places":
        return Places(
            self.positions[first:last], self.states[first:last], self.frequencies, self.turns[first:last]
        )


class _Compressor(ctypes.Structure):
    _fields_ = (
        ("values", VOID), ("scores", VOID), ("ape", VOID), ("norm", VOID), ("frontier", RowsArgument),
        ("rows", RowsArgument), ("width", INT), ("dim", INT), ("ratio", INT), ("values_stride", INT),
        ("scores_stride", INT),
    )  # fmt: skip


class _Remember(ctypes.Structure):
    _fields_ = (
        ("kv", VOID), ("norm", VOID), ("window", RowsArgument), ("positions", VOID), ("states", VOID),
        ("frequencies", VOID), ("turns", VOID), ("compressors", _Compressor * 2),
        ("dim", INT), ("rope", INT), ("kind", INT), ("rows", INT), ("kv_stride", INT), ("eps", FLOAT),
    )  # fmt: skip


class _Scores(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("gates", VOID), ("keys", RowsArgument), ("positions", VOID), ("states", VOID),
        ("turns", VOID), ("scores", VOID), ("heads", INT), ("rope", INT), ("ratio", INT), ("stride", INT),
        ("enough", INT), ("early", INT),
    )  # fmt: skip


class _Select(ctypes.Structure):
    _fields_ = (
        ("scores", VOID), ("positions", VOID), ("picks", VOID), ("counts", VOID),
        ("stride", INT), ("ratio", INT), ("count", INT),
    )  # fmt: skip


class _Attention(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("picks", VOID), ("positions", VOID), ("states", VOID), ("turns", VOID), ("sinks", VOID),
        ("out", VOID), ("digits", VOID), ("window", RowsArgument), ("compressed", RowsArgument), ("heads", INT),
        ("rows", INT), ("window_length", INT), ("ratio", INT), ("pick_stride", INT), ("group_heads", INT),
        ("early", INT), ("eps", FLOAT), ("apart", VOID), ("apart_tops", VOID),
    )  # fmt: skip


@dataclass
class CompressorState:
    """A compressor's weights and memory; dim < width: windows overlap."""

    values: torch.Tensor  # float32 [rows, width]: this step's projections
    scores: torch.Tensor  # float32 [rows, width]
    ape: torch.Tensor  # float32 [ratio, width]
    norm: torch.Tensor  # float32 [dim]
    frontier: RowsAt  # float32 [capacity, 2 · width]
    rows: RowsAt  # [capacity, dim]

    def argument(self) -> _Compressor:
        ratio, width = self.ape.shape
        # What a window reads, and a launch's other rows
        least = ratio * (2 if width > len(self.norm) else 1) + len(self.values) - 1
        if self.frontier.capacity < least:
            raise ValueError(f"a frontier of {self.frontier.capacity} positions, at least {least}")
        return _Compressor(
            address(self.values), address(self.scores), address(self.ape), address(self.norm),
            rows_argument(self.frontier), rows_argument(self.rows), width, len(self.norm), ratio,
            self.values.stride(0), self.scores.stride(0),
        )  # fmt: skip


class _Turns(ctypes.Structure):
    _fields_ = (("positions", VOID), ("frequencies", VOID), ("turns", VOID), ("half", INT))


class MakeTurns:
    """Cosines and sines of the rows' positions, once a token for all layers that share `places`."""

    def __init__(self, places: Places):
        half = len(places.frequencies)
        self._argument = _Turns(
            address(places.positions), address(places.frequencies), address(places.turns), half
        )
        self._keep = places
        self._kernel = module("state.cu").kernel("make_turns")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._keep.rows, 64, (self._argument,), overlap)


class Remember:
    """kv [rows, dim] → the window's ring; projections → frontiers and rows.  kind: of window and compressed rows."""

    def __init__(
        self, kv: torch.Tensor, norm: torch.Tensor, window: RowsAt, places: Places,
        compressors: list[CompressorState], eps: float, kind: str = "f16",
    ):  # fmt: skip
        both = (_Compressor * 2)(*(c.argument() for c in compressors))
        if len(norm) > MAX_DIM or any(len(c.norm) > MAX_DIM for c in compressors):
            raise ValueError(f"rows of at most {MAX_DIM} channels, not {len(norm)}")
        if any(len(each) % 2 for each in (norm, *(c.norm for c in compressors))) or kv.stride(0) % 2:
            raise ValueError("rows are of pairs of channels")
        self._argument = _Remember(
            address(kv), address(norm), rows_argument(window), address(places.positions),
            address(places.states), address(places.frequencies), address(places.turns), both, len(norm), places.rope,
            ROW_KINDS[kind], places.rows, kv.stride(0), eps,
        )  # fmt: skip
        self._keep = (kv, norm, places, compressors)
        self._grid = (1 + len(compressors), places.rows)
        self._kernel = module("state.cu").kernel("remember")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 512, (self._argument,), overlap)


class SelectRows:
    """scores [rows, stride] → picks [rows, count], the best of the visible rows, and their number [rows]"""

    def __init__(
        self,
        scores: torch.Tensor,
        places: Places,
        picks: torch.Tensor,
        counts: torch.Tensor,
        ratio: int,
    ):
        self._argument = _Select(
            address(scores), address(places.positions), address(picks), address(counts), scores.stride(0),
            ratio, picks.shape[1],
        )  # fmt: skip
        self._keep = (scores, places, picks, counts)
        self._kernel = module("indexer.cu").kernel("index_select")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._keep[1].rows, 1024, (self._argument,), overlap)


class Indexer:
    """q [rows, heads, 128], gates [rows, heads] against index rows → picks [rows, count] and their number [rows].

    early: as for `Attention`.
    """

    @staticmethod
    def takes(heads: int, dim: int, kind: str) -> bool:
        return dim == 128 and heads % 16 == 0 and kind == "f16"

    def __init__(
        self, q: torch.Tensor, gates: torch.Tensor, keys: RowsAt, places: Places, scores: torch.Tensor,
        picks: torch.Tensor, counts: torch.Tensor, ratio: int, early: bool = False,
    ):  # fmt: skip
        heads, count = q.shape[1], picks.shape[1]
        if not self.takes(heads, q.shape[2], "f16") or gates.stride(0) != heads:
            raise ValueError(f"the indexer takes heads by sixteens, of 128 channels, not {list(q.shape)}")
        self._scores = _Scores(
            address(q), address(gates), rows_argument(keys), address(places.positions), address(places.states),
            address(places.turns), address(scores), heads, places.rope, ratio, scores.stride(0), count, int(early),
        )  # fmt: skip
        self._select = SelectRows(scores, places, picks, counts, ratio)
        self._keep = (q, gates)
        self._grid = (max(1, card().multiprocessors // places.rows), places.rows)
        self._kernel = module("indexer.cu").kernel("index_scores", heads * 128 * 4 + heads * 4)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 256, (self._scores,), overlap)
        self._select.launch(overlap)


class Attention:
    """q [rows, heads, 512] over window, compressed rows and sinks → out [rows, heads · 512], or digits by groups of
    heads.  picks [rows, count]: the compressed rows to see, as `SelectRows` leaves them.

    apart: float32 [rows, `apart_floats`], which rows that are `many` leave sums in between two launches; its own
    where there has to be one.

    early: between the kernel that wrote the queries and this one is a `Remember`, an indexer's first kernel or
    another `Attention`.  Those let the next kernel start only when the one before them has ended, so that this one
    may read queries and places while what is behind them still runs.
    """

    SHARED = 48 * (512 * 2 + 16) + 16 * 512 * 4 + 2 * 16 * (48 * 2 + 16) + 880  # `Shared` of attention.cu

    @staticmethod
    def takes(heads: int, dim: int, rope: int, kind: str) -> bool:
        return dim == 512 and rope == 64 and heads % 16 == 0 and kind == "f16"

    @staticmethod
    def many(rows: int, heads: int) -> bool:
        """Whether there are no clusters, or they may have no place at once: two blocks to a multiprocessor, eight to
        a cluster, and some multiprocessors left over in every part of the card."""
        return not card().bulk or rows * (heads // 16) * CLUSTER > 0.9 * 2 * card().multiprocessors

    @staticmethod
    def apart_floats(heads: int) -> int:
        return heads * CLUSTER * (512 + 2)

    def __init__(
        self, q: torch.Tensor, window: RowsAt, places: Places, sinks: torch.Tensor, window_length: int,
        eps: float, ratio: int = 0, compressed: RowsAt | None = None, picks: torch.Tensor | None = None,
        out: torch.Tensor | None = None, digits: Image | None = None, early: bool = False,
        apart: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, heads, dim = q.shape
        if not self.takes(heads, dim, places.rope, "f16"):
            raise ValueError(f"attention takes heads by sixteens, of 512 channels, not {list(q.shape)}")
        if digits is not None and digits.forms != DIGITS:
            raise ValueError("attention writes digits alone")
        if apart is None and not card().bulk:  # no clusters, nor anybody's sums
            apart = torch.empty(rows, self.apart_floats(heads), device="cuda")
        if apart is not None and apart.shape != (rows, self.apart_floats(heads)):
            raise ValueError(f"sums of {list(apart.shape)} for {rows} rows of {heads} heads")
        self._argument = _Attention(
            address(q), address(picks), address(places.positions), address(places.states), address(places.turns),
            address(sinks), address(out), address(digits.data if digits else None),
            rows_argument(window), rows_argument(compressed), heads, rows, window_length,
            ratio if compressed is not None else 0, picks.shape[1] if picks is not None else 0,
            heads // digits.groups if digits else 0, int(early), eps, address(apart),
            address(apart) + 4 * rows * heads * CLUSTER * dim if apart is not None else 0,
        )  # fmt: skip
        self._keep = (q, places, sinks, picks, out, digits, apart)
        grid, source = (heads // 16 * CLUSTER, rows), module("attention.cu")
        if apart is None:
            self._launches = [(source.kernel("attend", self.SHARED, CLUSTER), grid)]
        else:
            join = source.kernel("attend_join")
            self._launches = [
                (source.kernel("attend_apart", self.SHARED), grid), (join, (heads * CLUSTER // 16, rows)),
            ]  # fmt: skip

    def launch(self, overlap: bool = True) -> None:
        for kernel, grid in self._launches:
            kernel.launch(grid, 256, (self._argument,), overlap)
