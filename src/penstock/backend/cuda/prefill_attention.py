"""State and attention of a long step, as calls of kernels/prefill_state.cu, _indexer.cu and _attention.cu.

What the step's tokens leave in rings of recent rows is written last (`commit_window`, `commit_frontier`), perhaps to
other memory than that of the sequences: until then the step can fail.
"""

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
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
from penstock.backend.cuda.launch import kernel
from penstock.backend.cuda.prefill_products import HALF_SCALE, HalfRows

DIM, INDEX_DIM, INDEX_HEADS, _INDEX_ROWS = 512, 128, 64, 4
OUT_SCALE = 1 / 16  # 1 / UP of prefill_attention.cu
# Threads and shared memory of a block: as prefill_attention_wgmma.cuh or _mma.cuh has it
OF_WARPGROUPS = 384, 2048 + 64 * DIM * 2 + 4 * 32 * DIM * 2 + 64 * 64 * 2
OF_WARPS = 256, 2 * 32 * DIM * 2 + 8 * 16 * 32 * 4 + 1024
_INDEXER_BYTES = 4 * 64 * INDEX_DIM * 2 + 2 * 4 * 4 * 64 * 4


@dataclass
class LongPlaces(Places):
    """Where the rows of a long step stand: sequences one behind the other, each with neighbouring positions."""

    firsts: torch.Tensor  # int32 [rows]: the first row of the row's sequence
    rings: torch.Tensor  # int64 [rows]: where rings are written, as `states`
    spans: tuple[
        tuple[int, int, int], ...
    ]  # of every sequence: first row, one behind its last, first position
    _lists: dict[tuple[str, int], torch.Tensor]

    @staticmethod
    def of(sequences: Sequence[tuple[int, int, int, int]], frequencies: torch.Tensor) -> "LongPlaces":
        """From (address of the state, address where its rings are written, first position, rows)."""
        counts = torch.tensor([rows for *_, rows in sequences])

        def spread(values: list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).repeat_interleave(counts).cuda()

        spans, first = [], 0
        for _, _, position, rows in sequences:
            spans.append((first, first + rows, position))
            first += rows
        positions = [torch.arange(p, p + b - a, dtype=torch.int32) for a, b, p in spans]
        places = LongPlaces(
            torch.cat(positions).cuda(), spread([s for s, *_ in sequences], torch.int64), frequencies,
            torch.empty(first, len(frequencies), 2, device="cuda"), spread([a for a, _, _ in spans], torch.int32),
            spread([r for _, r, *_ in sequences], torch.int64), tuple(spans), {},
        )  # fmt: skip
        MakeTurns(places).launch()
        return places

    def turned(self, frequencies: torch.Tensor) -> "LongPlaces":
        """The same rows with other frequencies."""
        turns = torch.empty(self.rows, len(frequencies), 2, device="cuda")
        other = LongPlaces(
            self.positions, self.states, frequencies, turns, self.firsts, self.rings, self.spans, self._lists
        )
        MakeTurns(other).launch()
        return other

    def _some(self, key: tuple[str, int], rows: Callable[[int, int, int], range]) -> torch.Tensor:
        """int32: rows of every span"""
        if key not in self._lists:
            found = [torch.tensor(rows(*span), dtype=torch.int32) for span in self.spans]
            self._lists[key] = torch.cat(found).cuda()
        return self._lists[key]

    def fours(self) -> torch.Tensor:
        """The first of every four rows of a sequence."""
        return self._some(("fours", 4), lambda a, b, _: range(a, b, _INDEX_ROWS))

    def parts(self, most: int) -> Iterator[tuple[int, int, int, int]]:
        """Stretches of at most so many rows, at least four: first row, one behind the last; the same in fours."""
        starts = (
            [row for a, b, _ in self.spans for row in range(a, b, _INDEX_ROWS)] if self.rows > most else [0]
        )
        ends, first = [*starts[1:], self.rows], 0
        while first < len(starts):
            last = max(bisect_right(ends, starts[first] + most), first + 1)
            whole = self.rows <= most
            yield starts[first], ends[last - 1], first, len(self.fours()) if whole else last
            first = last

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, this step's included."""
        return max(position + b - a for a, b, position in self.spans)

    def completing(self, ratio: int) -> torch.Tensor:
        """Rows that complete a window of so many tokens."""
        return self._some(("completing", ratio), lambda a, b, p: range(a + (-p - 1) % ratio, b, ratio))

    def last(self, count: int) -> torch.Tensor:
        """The last `count` rows of every sequence."""
        return self._some(("last", count), lambda a, b, _: range(max(a, b - count), b))


class _KeepRows(ctypes.Structure):
    _fields_ = (
        ("kv", VOID), ("norm", VOID), ("turns", VOID), ("fresh", VOID), ("dim", INT), ("rope", INT), ("rows", INT),
        ("eps", FLOAT),
    )  # fmt: skip


class _StepRows(ctypes.Structure):
    _fields_ = (("positions", VOID), ("firsts", VOID), ("states", VOID), ("some", VOID))


class _PoolRows(ctypes.Structure):
    _fields_ = (
        ("step", _StepRows), ("values", VOID), ("scores", VOID), ("ape", VOID), ("norm", VOID), ("frequencies", VOID),
        ("frontier", RowsArgument), ("out", RowsArgument), ("width", INT), ("dim", INT), ("rope", INT),
        ("ratio", INT), ("kind", INT), ("eps", FLOAT),
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
        ("fresh", VOID), ("picks", VOID), ("pick_counts", VOID), ("positions", VOID), ("firsts", VOID),
        ("states", VOID), ("window", RowsArgument), ("compressed", RowsArgument), ("window_length", INT),
        ("ratio", INT), ("pick_stride", INT),
    )  # fmt: skip


class _AttendRows(ctypes.Structure):
    _fields_ = (
        ("q", VOID), ("q_scales", VOID), ("keys", _Keys), ("turns", VOID), ("sinks", VOID), ("out", VOID),
        ("heads", INT), ("rows", INT), ("rope", INT), ("eps", FLOAT), ("q_up", FLOAT),
    )  # fmt: skip


def _step(places: LongPlaces, states: torch.Tensor, some: torch.Tensor) -> _StepRows:
    return _StepRows(address(places.positions), address(places.firsts), address(states), address(some))


def keep_rows(
    kv: torch.Tensor, norm: torch.Tensor, places: LongPlaces, fresh: torch.Tensor, eps: float
) -> None:
    """kv [rows, dim] → the step's own key/value rows, float16 [rows, dim]"""
    rows, dim = kv.shape
    argument = _KeepRows(
        address(kv), address(norm), address(places.turns), address(fresh), dim, places.rope, rows, eps
    )
    kernel("prefill_state.cu", "keep_rows").launch(-(-rows // 8), 256, (argument,))


def pool_rows(compressor: CompressorState, places: LongPlaces, eps: float, kind: str = "f16") -> None:
    """Compressed rows that the step completes."""
    (ratio, width), dim = compressor.ape.shape, len(compressor.norm)
    rows = places.completing(ratio)
    if not len(rows):
        return
    argument = _PoolRows(
        _step(places, places.states, rows), address(compressor.values), address(compressor.scores),
        address(compressor.ape), address(compressor.norm), address(places.frequencies),
        rows_argument(compressor.frontier), rows_argument(compressor.rows), width, dim, places.rope, ratio,
        ROW_KINDS[kind], eps,
    )  # fmt: skip
    kernel("prefill_state.cu", "pool_rows", 4 * dim).launch(len(rows), 512, (argument,))


def commit_window(fresh: torch.Tensor, window: RowsAt, places: LongPlaces) -> None:
    rows = places.last(window.capacity)
    step = _step(places, places.rings, rows)
    argument = _CommitRows(step, address(fresh), 0, 0, 0, rows_argument(window), fresh.shape[1], 0)
    kernel("prefill_state.cu", "commit_rows").launch(len(rows), 256, (argument,))


def commit_frontier(compressor: CompressorState, places: LongPlaces) -> None:
    (ratio, width), rows = compressor.ape.shape, places.last(compressor.frontier.capacity)
    argument = _CommitRows(
        _step(places, places.rings, rows), 0, address(compressor.values), address(compressor.scores),
        address(compressor.ape), rows_argument(compressor.frontier), width, ratio,
    )  # fmt: skip
    kernel("prefill_state.cu", "commit_rows").launch(len(rows), 256, (argument,))


def select_rows(
    q: torch.Tensor, gates: torch.Tensor, keys: RowsAt, places: LongPlaces, scores: torch.Tensor,
    picks: torch.Tensor, counts: torch.Tensor, ratio: int,
) -> None:  # fmt: skip
    """q [rows, 64, 128], gates [rows, 64] against index rows → picks [rows, count] and their number [rows].

    scores [some rows, visible rows at most] is memory to work in: so many rows are scored at a time."""
    if q.shape[1:] != (INDEX_HEADS, INDEX_DIM):
        raise ValueError(f"the indexer of long steps takes 64 heads of 128 channels, not {list(q.shape)}")
    score, size = kernel("prefill_indexer.cu", "score_rows", _INDEXER_BYTES), scores.stride(0)
    for begin, end, first, last in places.parts(len(scores)):
        argument = _ScoreRows(
            address(q), address(gates), address(places.positions), address(places.firsts), address(places.states),
            rows_argument(keys), address(places.fours()) + 4 * first, address(places.turns),
            address(scores) - 4 * size * begin, places.rows, places.rope, ratio, size, picks.shape[1],
        )  # fmt: skip
        score.launch(last - first, 512, (argument,))
        SelectRows(scores, places.part(begin, end), picks[begin:end], counts[begin:end], ratio).launch()


def attend(
    q: torch.Tensor, q_scales: torch.Tensor, fresh: torch.Tensor, window: RowsAt, places: LongPlaces,
    sinks: torch.Tensor, window_length: int, eps: float, out: HalfRows, ratio: int = 0,
    compressed: RowsAt | None = None, picks: torch.Tensor | None = None, counts: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """q [rows, heads, 512] over window, compressed rows and sinks → out [rows, heads · 512].

    q: float16, as `multiply` writes it; q_scales [rows]: the scales of that product's inputs."""
    rows, heads, dim = q.shape
    if dim != DIM or q.dtype != torch.float16:
        raise ValueError(
            f"attention of long steps takes heads of 512 halfs, not {list(q.shape)} of {q.dtype}"
        )
    keys = _Keys(
        address(fresh), address(picks), address(counts), address(places.positions), address(places.firsts),
        address(places.states), rows_argument(window), rows_argument(compressed), window_length,
        ratio if compressed is not None else 0, picks.shape[1] if picks is not None else 0,
    )  # fmt: skip
    out.scales, out.scale = None, OUT_SCALE
    argument = _AttendRows(
        address(q), address(q_scales), keys, address(places.turns), address(sinks), address(out.halves), heads, rows,
        places.rope, eps, HALF_SCALE,
    )  # fmt: skip
    threads, shared = OF_WARPGROUPS if card().warpgroups else OF_WARPS
    found = kernel("prefill_attention.cu", "attend_rows", shared)
    found.launch(min(card().multiprocessors, rows * -(-heads // 64)), threads, (argument,))
