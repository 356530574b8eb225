"""State and attention of a long step, as calls of kernels/prefill_state.cu, prefill_indexer.cu and prefill_attention.cu.

What the step's tokens leave in rings of recent rows is written last (`commit_window`, `commit_frontier`), perhaps to
other memory than that of the sequences: until then the step can fail.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from penstock.backend.cuda.attention import (
    ROW_KINDS,
    CompressorState,
    MakeTurns,
    Places,
    RowsArgument,
    RowsAt,
    SelectRows,
    rows_argument,
)
from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import FLOAT, INT, VOID, address
from penstock.backend.cuda.launch import module
from penstock.backend.cuda.prefill_products import HalfRows

DIM, INDEX_DIM, INDEX_HEADS, _INDEX_ROWS = 512, 128, 64, 4
OUT_SCALE = 1 / 16  # 1 / UP of prefill_attention.cu
_ATTENTION_BYTES = 2048 + 64 * DIM * 2 + 4 * 32 * DIM * 2 + 64 * 64 * 2
_INDEXER_BYTES = 4 * 64 * INDEX_DIM * 2 + 2 * 4 * 4 * 64 * 4


@dataclass
class LongPlaces(Places):
    """Where the rows of a long step stand: sequences one behind the other, each with neighbouring positions."""

    firsts: torch.Tensor  # int32 [rows]: the first row of the row's sequence
    ends: torch.Tensor  # int32 [rows]: one behind its last
    groups: torch.Tensor  # int32: the first of every four rows of a sequence
    rings: torch.Tensor  # int64 [rows]: where rings are written, as `states`

    @staticmethod
    def of(
        sequences: Sequence[tuple[int, int, int, int]], frequencies: torch.Tensor, turn: bool = True
    ) -> "LongPlaces":
        """From (address of the state, address where its rings are written, first position, rows)."""

        def spread(values: list[int], dtype: torch.dtype) -> torch.Tensor:
            counts = torch.tensor([rows for *_, rows in sequences])
            return torch.tensor(values, dtype=dtype).repeat_interleave(counts).cuda()

        starts = [0]
        for *_, rows in sequences:
            starts.append(starts[-1] + rows)
        positions = torch.cat([torch.arange(p, p + rows, dtype=torch.int32) for _, _, p, rows in sequences])
        groups = [torch.arange(a, b, _INDEX_ROWS, dtype=torch.int32) for a, b in zip(starts, starts[1:], strict=False)]
        turns = torch.empty(starts[-1], len(frequencies), 2, device="cuda")
        places = LongPlaces(
            positions.cuda(), spread([s for s, *_ in sequences], torch.int64), frequencies, turns,
            spread(starts[:-1], torch.int32), spread(starts[1:], torch.int32), torch.cat(groups).cuda(),
            spread([r for _, r, *_ in sequences], torch.int64),
        )  # fmt: skip
        if turn:
            MakeTurns(places).launch()
        return places

    def turned(self, frequencies: torch.Tensor) -> "LongPlaces":
        """The same rows with other frequencies."""
        turns = torch.empty(self.rows, len(frequencies), 2, device="cuda")
        other = LongPlaces(
            self.positions, self.states, frequencies, turns, self.firsts, self.ends, self.groups, self.rings
        )
        MakeTurns(other).launch()
        return other


class _KeepRows(ctypes.Structure):
    _fields_ = (
        ("kv", VOID), ("norm", VOID), ("turns", VOID), ("fresh", VOID), ("dim", INT), ("rope", INT), ("rows", INT),
        ("eps", FLOAT),
    )  # fmt: skip


class _StepRows(ctypes.Structure):
    _fields_ = (("positions", VOID), ("firsts", VOID), ("ends", VOID), ("states", VOID))


class _PoolRows(ctypes.Structure):
    _fields_ = (
        ("step", _StepRows), ("values", VOID), ("scores", VOID), ("ape", VOID), ("norm", VOID), ("frequencies", VOID),
        ("frontier", RowsArgument), ("out", RowsArgument), ("width", INT), ("dim", INT), ("rope", INT), ("ratio", INT),
        ("kind", INT), ("eps", FLOAT),
    )  # fmt: skip


class _CommitRows(ctypes.Structure):
    _fields_ = (
        ("step", _StepRows), ("fresh", VOID), ("values", VOID), ("scores", VOID), ("ape", VOID),
        ("ring", RowsArgument), ("width", INT), ("ratio", INT),
    )  # fmt: skip


class _ScoreRows(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("gates", VOID), ("positions", VOID), ("firsts", VOID), ("states", VOID), ("keys", RowsArgument),
        ("groups", VOID), ("turns", VOID), ("scores", VOID), ("rows", INT), ("rope", INT), ("ratio", INT),
        ("stride", INT), ("enough", INT),
    )  # fmt: skip


class _Keys(ctypes.Structure):
    _fields_ = (
        ("fresh", VOID), ("picks", VOID), ("pick_counts", VOID), ("positions", VOID), ("firsts", VOID), ("states", VOID),
        ("window", RowsArgument), ("compressed", RowsArgument), ("window_length", INT), ("ratio", INT),
        ("pick_stride", INT),
    )  # fmt: skip


class _AttendRows(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("keys", _Keys), ("turns", VOID), ("sinks", VOID), ("out", VOID), ("heads", INT), ("rows", INT),
        ("rope", INT), ("eps", FLOAT),
    )  # fmt: skip


def _step(places: LongPlaces, states: torch.Tensor) -> _StepRows:
    return _StepRows(
        address(places.positions), address(places.firsts), address(places.ends), address(states)
    )


def keep_rows(kv: torch.Tensor, norm: torch.Tensor, places: LongPlaces, fresh: torch.Tensor, eps: float) -> None:
    """kv [rows, dim] → the step's own key/value rows, float16 [rows, dim]"""
    rows, dim = kv.shape
    argument = _KeepRows(
        address(kv), address(norm), address(places.turns), address(fresh), dim, places.rope, rows, eps
    )
    module("prefill_state.cu").kernel("keep_rows").launch(-(-rows // 8), 256, (argument,))


def pool_rows(compressor: CompressorState, places: LongPlaces, eps: float, kind: str = "f16") -> None:
    """Compressed rows that the step completes."""
    (ratio, width), dim = compressor.ape.shape, len(compressor.norm)
    argument = _PoolRows(
        _step(places, places.states), address(compressor.values), address(compressor.scores), address(compressor.ape),
        address(compressor.norm), address(places.frequencies), rows_argument(compressor.frontier),
        rows_argument(compressor.rows), width, dim, places.rope, ratio, ROW_KINDS[kind], eps,
    )  # fmt: skip
    module("prefill_state.cu").kernel("pool_rows", 4 * dim).launch(places.rows, 512, (argument,))


def commit_window(fresh: torch.Tensor, window: RowsAt, places: LongPlaces) -> None:
    step = _step(places, places.rings)
    argument = _CommitRows(step, address(fresh), 0, 0, 0, rows_argument(window), fresh.shape[1], 0)
    module("prefill_state.cu").kernel("commit_rows").launch(places.rows, 256, (argument,))


def commit_frontier(compressor: CompressorState, places: LongPlaces) -> None:
    ratio, width = compressor.ape.shape
    argument = _CommitRows(
        _step(places, places.rings), 0, address(compressor.values), address(compressor.scores),
        address(compressor.ape), rows_argument(compressor.frontier), width, ratio,
    )  # fmt: skip
    module("prefill_state.cu").kernel("commit_rows").launch(places.rows, 256, (argument,))


def select_rows(
    q: torch.Tensor, gates: torch.Tensor, keys: RowsAt, places: LongPlaces, scores: torch.Tensor,
    picks: torch.Tensor, counts: torch.Tensor, ratio: int,
) -> None:  # fmt: skip
    """q [rows, 64, 128], gates [rows, 64] against index rows → picks [rows, count] and their number [rows].

    scores [rows, visible rows at most] is memory to work in."""
    if q.shape[1:] != (INDEX_HEADS, INDEX_DIM):
        raise ValueError(f"the indexer of long steps takes 64 heads of 128 channels, not {list(q.shape)}")
    argument = _ScoreRows(
        address(q), address(gates), address(places.positions), address(places.firsts), address(places.states),
        rows_argument(keys), address(places.groups), address(places.turns), address(scores), places.rows, places.rope,
        ratio, scores.stride(0), picks.shape[1],
    )  # fmt: skip
    kernel = module("prefill_indexer.cu").kernel("score_rows", _INDEXER_BYTES)
    kernel.launch(len(places.groups), 512, (argument,))
    SelectRows(scores, places, picks, counts, ratio).launch()


def attend(
    q: torch.Tensor, fresh: torch.Tensor, window: RowsAt, places: LongPlaces, sinks: torch.Tensor, window_length: int,
    eps: float, out: HalfRows, ratio: int = 0, compressed: RowsAt | None = None, picks: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """q [rows, heads, 512] over window, compressed rows and sinks → out [rows, heads · 512]"""
    rows, heads, dim = q.shape
    if dim != DIM:
        raise ValueError(f"attention of long steps takes heads of 512 channels, not {dim}")
    keys = _Keys(
        address(fresh), address(picks), address(counts), address(places.positions), address(places.firsts),
        address(places.states), rows_argument(window), rows_argument(compressed), window_length,
        ratio if compressed is not None else 0, picks.shape[1] if picks is not None else 0,
    )  # fmt: skip
    out.scales, out.scale = None, OUT_SCALE
    argument = _AttendRows(
        address(q), keys, address(places.turns), address(sinks), address(out.halves), heads, rows, places.rope, eps
    )
    kernel = module("prefill_attention.cu").kernel("attend_rows", _ATTENTION_BYTES)
    kernel.launch(min(card().multiprocessors, rows * -(-heads // 64)), 384, (argument,))
