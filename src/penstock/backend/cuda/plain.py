"""Ops of a step for any shape, as typed calls of kernels/plain.cu."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from penstock.backend.cuda.attention import (
    ROW_KINDS,
    Places,
    RowsArgument,
    RowsAt,
    SelectRows,
    rows_argument,
)
from penstock.backend.cuda.inputs import FLOAT, INT, LONG, VOID, address
from penstock.backend.cuda.launch import module
from penstock.weights import types
from penstock.weights.types import WeightType

# Numbers that kernels read by the row (RowKind, and Q8_0 for embeddings)
KINDS = {types.F32: 0, types.F16: 1, types.BF16: 2, types.Q8_0: 3}


@dataclass(frozen=True)
class StoredRows:
    """A matrix [rows, columns] on the card as its file holds it; `count` of them one behind the other."""

    data: torch.Tensor  # uint8 [count · rows, row bytes]
    kind: WeightType
    rows: int
    columns: int

    @property
    def number(self) -> int:
        return KINDS[self.kind]


class _Embed(ctypes.Structure):
    _fields_ = (
        ("table", VOID), ("tokens", VOID), ("out", VOID), ("row_bytes", LONG),
        ("kind", INT), ("hidden", INT), ("copies", INT),
    )  # fmt: skip


class Embed:
    """tokens int32 [rows] → out [rows, copies, hidden], all copies alike"""

    def __init__(self, table: StoredRows, tokens: torch.Tensor, out: torch.Tensor):
        rows, copies, hidden = out.shape
        row_bytes = table.kind.row_bytes(table.columns)
        self._argument = _Embed(
            address(table.data), address(tokens), address(out), row_bytes, table.number, hidden, copies
        )
        self._keep, self._rows = (table, tokens, out), rows
        self._kernel = module("plain.cu").kernel("embed")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._rows, 256, (self._argument,), overlap)


class _Mix(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("fn", VOID), ("base", VOID), ("scale", VOID), ("mix", VOID), ("x", VOID),
        ("fn_kind", INT), ("n", INT), ("hidden", INT), ("head", INT), ("iterations", INT), ("mix_stride", INT),
        ("eps", FLOAT), ("hc_eps", FLOAT),
    )  # fmt: skip


class MixStreams:
    """streams [rows, n, hidden] → mix [rows, pre n | post n | comb n · n], x [rows, hidden] before its norm"""

    def __init__(
        self, streams: torch.Tensor, fn: StoredRows, base: torch.Tensor, scale: torch.Tensor, mix: torch.Tensor,
        x: torch.Tensor, eps: float, hc_eps: float, iterations: int, head: bool,
    ):  # fmt: skip
        rows, n, hidden = streams.shape
        self._argument = _Mix(
            address(streams), address(fn.data), address(base), address(scale), address(mix), address(x),
            fn.number, n, hidden, int(head), iterations, mix.stride(0), eps, hc_eps,
        )  # fmt: skip
        self._keep, self._rows = (streams, fn, base, scale, mix, x), rows
        self._kernel = module("plain.cu").kernel("mix_streams")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._rows, 256, (self._argument,), overlap)


class _Leave(ctypes.Structure):
    _fields_ = (
        ("streams", VOID), ("y", VOID), ("mix", VOID), ("n", INT), ("hidden", INT), ("mix_stride", INT)
    )  # fmt: skip


class LeaveStreams:
    """y [rows, hidden] goes into streams [rows, n, hidden], in place"""

    def __init__(self, streams: torch.Tensor, y: torch.Tensor, mix: torch.Tensor):
        rows, n, hidden = streams.shape
        self._argument = _Leave(address(streams), address(y), address(mix), n, hidden, mix.stride(0))
        self._keep, self._grid = (streams, y, mix), (-(-hidden // 256), rows)
        self._kernel = module("plain.cu").kernel("leave_streams")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 256, (self._argument,), overlap)


class _Scores(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("gates", VOID), ("keys", RowsArgument), ("positions", VOID), ("states", VOID),
        ("turns", VOID), ("scores", VOID), ("heads", INT), ("dim", INT), ("rope", INT), ("kind", INT),
        ("ratio", INT), ("stride", INT), ("gates_stride", INT), ("enough", INT),
    )  # fmt: skip


class PlainIndexer:
    """As `Indexer`, for any heads [rows, heads, dim] and any kind of rows."""

    def __init__(
        self, q: torch.Tensor, gates: torch.Tensor, keys: RowsAt, places: Places, scores: torch.Tensor,
        picks: torch.Tensor, counts: torch.Tensor, ratio: int, kind: str, blocks: int = 64,
    ):  # fmt: skip
        _, heads, dim = q.shape
        self._argument = _Scores(
            address(q), address(gates), rows_argument(keys), address(places.positions), address(places.states),
            address(places.turns), address(scores), heads, dim, places.rope, ROW_KINDS[kind], ratio,
            scores.stride(0), gates.stride(0), picks.shape[1],
        )  # fmt: skip
        self._select = SelectRows(scores, places, picks, counts, ratio)
        self._keep, self._grid = (q, gates), (blocks, places.rows)
        self._kernel = module("plain.cu").kernel("score_rows", heads * (dim + 1) * 4)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 256, (self._argument,), overlap)
        self._select.launch(overlap)


class _Attention(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("picks", VOID), ("pick_counts", VOID), ("positions", VOID), ("states", VOID),
        ("turns", VOID), ("sinks", VOID), ("out", VOID), ("window", RowsArgument), ("compressed", RowsArgument),
        ("heads", INT), ("dim", INT), ("rope", INT), ("kind", INT), ("window_length", INT), ("ratio", INT),
        ("pick_stride", INT), ("eps", FLOAT),
    )  # fmt: skip


class PlainAttention:
    """As `Attention`, for any heads [rows, heads, dim] and any kind of rows → out [rows, heads · dim]"""

    def __init__(
        self, q: torch.Tensor, window: RowsAt, places: Places, sinks: torch.Tensor, window_length: int,
        eps: float, out: torch.Tensor, kind: str, ratio: int = 0, compressed: RowsAt | None = None,
        picks: torch.Tensor | None = None, counts: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, heads, dim = q.shape
        self._argument = _Attention(
            address(q), address(picks), address(counts), address(places.positions), address(places.states),
            address(places.turns), address(sinks), address(out), rows_argument(window),
            rows_argument(compressed), heads, dim, places.rope, ROW_KINDS[kind], window_length,
            ratio if compressed is not None else 0, picks.shape[1] if picks is not None else 0, eps,
        )  # fmt: skip
        self._keep, self._grid = (q, places, sinks, picks, counts, out), (heads, rows)
        self._kernel = module("plain.cu").kernel("see", 5 * dim * 4)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 128, (self._argument,), overlap)


class _Route(ctypes.Structure):
    _fields_ = (
        ("logits", VOID), ("bias", VOID), ("table", VOID), ("tokens", VOID), ("ids", VOID), ("weights", VOID),
        ("experts", INT), ("count", INT), ("normalize", INT), ("scale", FLOAT),
    )  # fmt: skip


class Route:
    """logits [rows, experts] → ids int32 and weights float32 [rows, count]; see `routing.Router`"""

    def __init__(
        self, logits: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, scale: float, normalize: bool,
        bias: torch.Tensor | None = None, table: torch.Tensor | None = None, tokens: torch.Tensor | None = None,
    ):  # fmt: skip
        rows, experts = logits.shape
        self._argument = _Route(
            address(logits), address(bias), address(table), address(tokens), address(ids), address(weights),
            experts, ids.shape[1], int(normalize), scale,
        )  # fmt: skip
        self._keep, self._rows = (logits, ids, weights, bias, table, tokens), rows
        self._kernel = module("plain.cu").kernel("route")

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._rows, 256, (self._argument,), overlap)


class _ExpertRows(ctypes.Structure):
    _fields_ = (
        ("gate", VOID), ("up", VOID), ("down", VOID), ("x", VOID), ("ids", VOID), ("weights", VOID),
        ("shared", VOID), ("acts", VOID), ("out", VOID), ("x_apart", LONG),
        ("gate_kind", INT), ("up_kind", INT), ("down_kind", INT), ("width", INT), ("hidden", INT),
        ("count", INT), ("limit", FLOAT),
    )  # fmt: skip


class PlainExperts:
    """out [rows, hidden] = Σ weight · expert(x) over the rows' experts, and `shared` [rows, hidden].

    matrices: gate, up, down; x: the address of the first row, and the bytes from one to the next."""

    def __init__(
        self, matrices: Sequence[StoredRows], x: tuple[int, int], ids: torch.Tensor,
        weights: torch.Tensor, shared: torch.Tensor, acts: torch.Tensor, out: torch.Tensor, limit: float,
    ):  # fmt: skip
        (rows, count), (gate, up, down) = ids.shape, matrices
        self._argument = _ExpertRows(
            address(gate.data), address(up.data), address(down.data), x[0], address(ids), address(weights),
            address(shared), address(acts), address(out), x[1], gate.number, up.number, down.number, gate.rows,
            gate.columns, count, limit,
        )  # fmt: skip
        self._keep = (matrices, ids, weights, shared, acts, out)
        self._grids = ((-(-gate.rows // 8), rows * count), (-(-gate.columns // 8), rows))
        kernels = module("plain.cu")
        self._up, self._down = kernels.kernel("expert_up"), kernels.kernel("expert_down")

    def launch(self, overlap: bool = True) -> None:
        self._up.launch(self._grids[0], 256, (self._argument,), overlap)
        self._down.launch(self._grids[1], 256, (self._argument,), overlap)
