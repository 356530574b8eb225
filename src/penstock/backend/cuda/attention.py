"""State and attention of a decode step, as typed calls of kernels/state.cu, indexer.cu and attention.cu.

Rows of a launch are tokens: positions [rows] and slots [rows], int32 on the card, say where each stands and whose
state it has, so that one graph serves every position.
"""

import ctypes
from dataclasses import dataclass, field

import torch

from penstock.backend.cuda.inputs import DIGITS, FLOAT, INT, LONG, VOID, Image, address
from penstock.backend.cuda.launch import module


@dataclass
class Places:
    """Where the rows of a step stand."""

    positions: torch.Tensor  # int32 [rows]
    slots: torch.Tensor  # int32 [rows]
    frequencies: torch.Tensor  # float32 [rope / 2], the layer's
    turns: torch.Tensor = field(init=False)  # float32 [rows, rope / 2, 2], written by `MakeTurns`

    def __post_init__(self) -> None:
        self.turns = torch.zeros(self.rows, len(self.frequencies), 2, device="cuda")

    @property
    def rows(self) -> int:
        return len(self.positions)


class _Compressor(ctypes.Structure):
    _fields_ = (
        ("values", VOID), ("scores", VOID), ("ape", VOID), ("norm", VOID), ("frontier", VOID), ("rows", VOID),
        ("rows_stride", LONG), ("width", INT), ("dim", INT), ("ratio", INT), ("capacity", INT),
    )  # fmt: skip


class _Remember(ctypes.Structure):
    _fields_ = (
        ("kv", VOID), ("norm", VOID), ("window", VOID), ("window_stride", LONG), ("positions", VOID), ("slots", VOID),
        ("frequencies", VOID), ("compressors", _Compressor * 2),
        ("dim", INT), ("rope", INT), ("window_capacity", INT), ("rows", INT), ("eps", FLOAT),
    )  # fmt: skip


class _Scores(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("gates", VOID), ("keys", VOID), ("keys_stride", LONG), ("positions", VOID), ("slots", VOID),
        ("turns", VOID), ("scores", VOID), ("heads", INT), ("rope", INT), ("ratio", INT), ("stride", INT),
        ("enough", INT),
    )  # fmt: skip


class _Select(ctypes.Structure):
    _fields_ = (
        ("scores", VOID), ("positions", VOID), ("picks", VOID), ("counts", VOID),
        ("stride", INT), ("ratio", INT), ("count", INT),
    )  # fmt: skip


class _Attention(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("window", VOID), ("compressed", VOID), ("picks", VOID), ("pick_counts", VOID),
        ("positions", VOID), ("slots", VOID), ("turns", VOID), ("sinks", VOID), ("partial", VOID), ("tops", VOID),
        ("out", VOID), ("digits", VOID), ("window_stride", LONG), ("compressed_stride", LONG),
        ("heads", INT), ("rows", INT), ("splits", INT), ("window_length", INT), ("capacity", INT), ("ratio", INT),
        ("pick_stride", INT), ("group_heads", INT), ("eps", FLOAT),
    )  # fmt: skip


@dataclass
class CompressorState:
    """A compressor's weights and memory; dim < width: windows overlap."""

    values: torch.Tensor  # float32 [rows, width]: this step's projections
    scores: torch.Tensor  # float32 [rows, width]
    ape: torch.Tensor  # float32 [ratio, width]
    norm: torch.Tensor  # float32 [dim]
    frontier: torch.Tensor  # float32 [slots, capacity, 2 · width]
    rows: torch.Tensor  # float16 [slots, capacity of rows, dim]

    def argument(self) -> _Compressor:
        ratio, width = self.ape.shape
        if self.frontier.shape[1] < 2 * ratio + 7:
            raise ValueError(f"a frontier of {self.frontier.shape[1]} positions, at least {2 * ratio + 7}")
        return _Compressor(
            address(self.values), address(self.scores), address(self.ape), address(self.norm), address(self.frontier),
            address(self.rows), self.rows.stride(0), width, self.rows.shape[2], ratio, self.frontier.shape[1],
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
    """kv [rows, dim] → the window's ring (float16 [slots, capacity, dim]); projections → frontiers and rows."""

    def __init__(
        self, kv: torch.Tensor, norm: torch.Tensor, window: torch.Tensor, places: Places,
        compressors: list[CompressorState], eps: float,
    ):  # fmt: skip
        both = (_Compressor * 2)(*(c.argument() for c in compressors))
        self._argument = _Remember(
            address(kv), address(norm), address(window), window.stride(0), address(places.positions),
            address(places.slots), address(places.frequencies), both, window.shape[2], 2 * len(places.frequencies),
            window.shape[1], places.rows, eps,
        )  # fmt: skip
        self._keep = (kv, norm, window, places, compressors)
        self._grid = (1 + len(compressors), places.rows)
        self._kernel = module("state.cu").kernel("remember")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 512, (self._argument,), overlap)


class Indexer:
    """q [rows, heads, 128], gates [rows, heads] against index rows → picks [rows, count] and their number [rows]."""

    def __init__(
        self, q: torch.Tensor, gates: torch.Tensor, keys: torch.Tensor, places: Places, scores: torch.Tensor,
        picks: torch.Tensor, counts: torch.Tensor, ratio: int, blocks: int = 64,
    ):  # fmt: skip
        heads, count = q.shape[1], picks.shape[1]
        if q.shape[2] != 128 or heads % 16:
            raise ValueError(f"the indexer takes heads by sixteens, of 128 channels, not {list(q.shape)}")
        self._scores = _Scores(
            address(q), address(gates), address(keys), keys.stride(0), address(places.positions),
            address(places.slots),
            address(places.turns), address(scores), heads, 2 * len(places.frequencies), ratio, scores.stride(0),
            count,
        )  # fmt: skip
        self._select = _Select(
            address(scores),
            address(places.positions),
            address(picks),
            address(counts),
            scores.stride(0),
            ratio,
            count,
        )
        self._keep = (q, gates, keys, places, scores, picks, counts)
        self._rows, self._blocks = places.rows, blocks
        self._score_kernel = module("indexer.cu").kernel("index_scores", heads * 128 * 4 + heads * 4)
        self._select_kernel = module("indexer.cu").kernel("index_select")

    def launch(self, overlap: bool = True) -> None:
        self._score_kernel.launch((self._blocks, self._rows), 256, (self._scores,), overlap)
        self._select_kernel.launch(self._rows, 1024, (self._select,), overlap)


class Attention:
    """q [rows, heads, 512] over window, compressed rows and sinks → out [rows, heads · 512], or digits by groups of
    heads."""

    SHARED = 2 * 32 * 512 + 32 * (512 * 2 + 16) + 2 * 16 * (32 * 2 + 16) + (2 * 16 * 33 + 3 * 16) * 4

    def __init__(
        self, q: torch.Tensor, window: torch.Tensor, places: Places, sinks: torch.Tensor, window_length: int,
        eps: float, ratio: int = 0, compressed: torch.Tensor | None = None, picks: torch.Tensor | None = None,
        counts: torch.Tensor | None = None, out: torch.Tensor | None = None, digits: Image | None = None,
        splits: int = 20,
    ):  # fmt: skip
        rows, heads, dim = q.shape
        if dim != 512 or heads % 16:
            raise ValueError(f"attention takes heads by sixteens, of 512 channels, not {list(q.shape)}")
        if digits is not None and digits.forms != DIGITS:
            raise ValueError("attention writes digits alone")
        if splits > 32:
            raise ValueError(f"attention in {splits} shares, at most 32")
        partial = torch.empty(rows, splits, heads, dim, device="cuda")
        tops = torch.empty(rows, splits, heads, 2, device="cuda")
        self._argument = _Attention(
            address(q), address(window), address(compressed), address(picks), address(counts),
            address(places.positions), address(places.slots), address(places.turns), address(sinks),
            address(partial), address(tops), address(out), address(digits.data if digits else None), window.stride(0),
            compressed.stride(0) if compressed is not None else 0,
            heads, rows, splits, window_length, window.shape[1],
            ratio, picks.shape[1] if picks is not None else 0, heads // digits.groups if digits else 0, eps,
        )  # fmt: skip
        self._keep = (q, window, places, sinks, compressed, picks, counts, out, digits, partial, tops)
        self._grids = ((heads // 16, splits, rows), (heads, rows))
        self._attend = module("attention.cu").kernel("attend", self.SHARED)
        self._join = module("attention.cu").kernel("join_shares")

    def launch(self, overlap: bool = True) -> None:
        self._attend.launch(self._grids[0], 256, (self._argument,), overlap)
        self._join.launch(self._grids[1], 64, (self._argument,), overlap)
