"""What the ops of a step share: where its rows stand, on the card at fixed addresses, and working memory.

Rows are padded to one of a few numbers, so that a recorded graph can be repeated: those behind the last repeat it,
and do once more what it does.  Kernels take a few rows at a time, so ops launch them for pieces of the rows.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.base import Vector
from penstock.backend.cuda.attention import MakeTurns, Places
from penstock.backend.cuda.deepseek_v4.long_memory import LongMemory
from penstock.backend.cuda.inputs import MAX_ROWS, PIECE
from penstock.backend.cuda.memory import Workspace
from penstock.backend.cuda.placed import vector
from penstock.backend.cuda.states import CudaStates
from penstock.backend.state import Step

if TYPE_CHECKING:
    from penstock.backend.cuda.deepseek_v4.experts import CudaRouter

BUCKETS: Final = (1, 2, 3, 4, 8, 16, 32)  # rows that have a graph
PINNED: Final = 4  # steps whose places may be on their way to the card

T = TypeVar("T")


class Launch(Protocol):
    def launch(self, overlap: bool = True) -> None: ...


def padded(rows: int) -> int:
    """Rows of the graph that a step of so many rows takes part in, or as many as whole pieces have."""
    return next((bucket for bucket in BUCKETS if bucket >= rows), -(-rows // PIECE) * PIECE)


def pieces(rows: int, size: int = MAX_ROWS) -> list[tuple[int, int]]:
    return [(first, min(first + size, rows)) for first in range(0, rows, size)]


def smaller_pieces(make: Callable[[int], T], size: int = MAX_ROWS) -> T:
    """`make` for the largest pieces, of at most `size` rows, whose inputs fit in a block's shared memory."""
    while True:
        try:
            return make(size)
        except ValueError:
            if size == 1:
                raise
            size //= 2


class Batch:
    """One step."""

    __slots__ = ("blocks", "rows", "step")

    def __init__(self, step: Step, rows: int, blocks: range):
        self.step, self.rows, self.blocks = step, rows, blocks

    def sequences(self) -> Iterator[tuple[int, int, int, int]]:
        """(slot, first row, rows, first position)"""
        for number, slot in enumerate(self.step.slots):
            start, stop = self.step.starts[number], self.step.starts[number + 1]
            yield slot, start, stop - start, int(self.step.positions[start])


class StepMemory:
    """Tokens, positions and states of a step's rows on the card, and what ops put their results in."""

    def __init__(self, pool: CudaStates, rows: int):
        self.pool, self.rows = pool, rows
        self.workspace, self.long = Workspace(rows), LongMemory(pool)
        size = 24 * rows  # states and rows that want logits 8 bytes a row, tokens and positions 4
        self._device = torch.zeros(size, dtype=torch.uint8, device="cuda")
        self._pinned = [torch.zeros(size, dtype=torch.uint8).pin_memory() for _ in range(PINNED)]
        self._parts = [_parts(pinned.numpy(), rows) for pinned in self._pinned]
        self._copied = [torch.cuda.Event() for _ in range(PINNED)]
        self._turn = 0
        self.states = self._device[: 8 * rows].view(torch.int64)
        self.wanted = self._device[8 * rows : 16 * rows].view(torch.int64)
        self.tokens = self._device[16 * rows : 20 * rows].view(torch.int32)
        self.positions = self._device[20 * rows :].view(torch.int32)
        self.live = 0  # rows of the step under way that are not padding
        self.cuts = True  # whether its graph is cut
        self._wanted: tuple[int, ...] = ()  # the rows that are there now
        self.routers: list[CudaRouter] = []  # in the model's order
        self.mixes: list[torch.Tensor] = []  # matrices of the hyper-connections, in the model's order
        self._places: dict[int, tuple[Vector, Places]] = {}  # by identity of the frequencies
        self._turns: dict[int, list[MakeTurns]] = {}

    def mix(self, number: int) -> torch.Tensor | None:
        """What a hyper-connection reads first: whoever comes before it brings it nearer."""
        return self.mixes[number] if number < len(self.mixes) else None

    def places(self, frequencies: Vector) -> Places:
        """Of all rows there is room for, with rotations for these frequencies."""
        found = self._places.get(id(frequencies))
        if found is None:
            turns = torch.zeros(self.rows, len(frequencies), 2, device="cuda")
            places = Places(self.positions, self.states, vector(frequencies), turns)
            found = self._places[id(frequencies)] = (frequencies, places)
            self._turns.clear()
        return found[1]

    def turn(self, rows: int) -> None:
        """Launches what makes the rotations of a step."""
        if rows not in self._turns:
            self._turns[rows] = [MakeTurns(places.part(0, rows)) for _, places in self._places.values()]
        for turns in self._turns[rows]:
            turns.launch()

    def begin(self, step: Step, blocks: range) -> Batch:
        """Brings a step's rows to the card, and makes room for what its sequences will keep."""
        live, rows = step.rows, padded(step.rows)
        if rows > self.rows:
            raise ValueError(f"a step of {live} rows, at most {self.rows}")
        self.live = live
        at, host = self._next()
        states, wanted, tokens, positions = host
        for number, slot in enumerate(step.slots):
            start, stop = step.starts[number], step.starts[number + 1]
            self.pool.ensure(slot, int(step.positions[start]) + stop - start)
            states[start:stop] = self.pool.writable(slot)
        states[live:rows] = states[live - 1]
        tokens[:live], tokens[live:rows] = step.tokens, step.tokens[-1]
        positions[:live], positions[live:rows] = step.positions, step.positions[-1]
        self._want(wanted, step.logits)
        self._device.copy_(self._pinned[at], non_blocking=True)
        self._copied[at].record()
        if step.source is not None:
            self.tokens[:live].copy_(step.source)
            self.tokens[live:rows].copy_(self.tokens[live - 1].expand(rows - live))
        return Batch(step, rows, blocks)

    def _next(self) -> tuple[int, list[NDArray[Any]]]:
        """The next of the buffers on the host, and its parts."""
        at, self._turn = self._turn, (self._turn + 1) % PINNED
        self._copied[at].synchronize()  # the card has had it some steps ago
        return at, self._parts[at]

    def _want(self, to: NDArray[Any], rows: NDArray[np.int64]) -> None:
        """Rows whose logits are wanted, as far as one launch takes them; those behind the last repeat it."""
        count = min(len(rows), BUCKETS[-1])
        if count:
            to[:count], to[count : padded(count)] = rows[:count], rows[count - 1]
        self._wanted = tuple(rows[:count].tolist())

    def want(self, rows: NDArray[np.int64]) -> torch.Tensor:
        """These rows on the card, padded; a step's own are there already."""
        if tuple(rows.tolist()) != self._wanted:
            _, (_, wanted, _, _) = self._next()
            self._want(wanted, rows)
            self.wanted.copy_(torch.from_numpy(wanted))
        return self.wanted[: padded(len(rows))]


def _parts(host: NDArray[np.uint8], rows: int) -> list[NDArray[Any]]:
    """States, rows that want logits, tokens, positions"""
    return [
        host[: 8 * rows].view(np.int64),
        host[8 * rows : 16 * rows].view(np.int64),
        host[16 * rows : 20 * rows].view(np.int32),
        host[20 * rows :].view(np.int32),
    ]


def run(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch.launch()
