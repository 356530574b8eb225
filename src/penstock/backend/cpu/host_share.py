"""The processors' share of a layer's experts, where a device computes the others."""

import ctypes
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import AtHand, DividedLease, ExpertTable, Vector
from penstock.backend.cpu.weights import CpuExpert, CpuExpertTable
from penstock.backend.device import GLANCE, HostShare, HostTurns, Meeting
from penstock.native.library import native
from penstock.native.structs import Turns

_NOT_YET, _TAKEN, _NO_ROOM = range(3)  # what a turn has come to


class CpuShare(HostShare):
    def __init__(
        self, x: Vector, ids: NDArray[np.int64], weights: Vector, out: Vector, limit: float, threads: int
    ):
        self._kept, self.ids = (x, ids, weights, out), ids
        self._rows, self._count = ids.shape
        self._hidden, self._limit, self._threads = x.shape[1], limit, threads
        self._terms = np.zeros((self._rows * self._count, self._hidden), np.float32)
        # Looked up once: it takes longer than a call.
        self._x, self._ids, self._weights, self._out = (array.ctypes.data for array in self._kept)
        self._to = self._terms.ctypes.data

    def run(self, tables: Iterable[ExpertTable], rows: int) -> bool:
        found, library = False, native()
        for table in tables:
            assert isinstance(table, CpuExpertTable)
            if not found:
                self._terms[: rows * self._count] = 0.0  # of what others compute
                found = True
            library.ps_expert_terms(
                *(table.address, len(table), self._ids, self._weights, self._count, self._limit),
                *(None, 0.0, self._x, rows, self._to, self._threads),
            )
        if found:
            library.ps_expert_sum(
                *(self._ids, self._weights, rows, self._count, False, self._to, self._hidden, self._out),
                self._threads,
            )
        return found

    def turns(self, meeting: Meeting, layer: AtHand) -> "CpuTurns":
        assert isinstance(layer.table, CpuExpertTable)
        sent, answered, arrivals, places, likely = (array.ctypes.data for array in meeting)
        asked, guessed = np.zeros((self._rows, self._count), np.int64), np.zeros(self._count, np.int64)
        described = Turns(
            *(sent, answered, arrivals, places, self._ids, likely, asked.ctypes.data, guessed.ctypes.data),
            *(self._weights, self._x, self._out),
            *(layer.table.address, layer.placement, len(meeting.arrivals), self._rows, self._count),
            *(self._hidden, layer.block, self._threads, 0, 0, self._limit),
        )
        return CpuTurns(described, asked, guessed, (self, meeting, layer))


class CpuTurns(HostTurns):
    def __init__(
        self,
        described: Turns,
        asked: NDArray[np.int64],
        guessed: NDArray[np.int64],
        kept: tuple[CpuShare, Meeting, AtHand],
    ):
        self._described, self._address, self._kept = described, ctypes.addressof(described), kept
        self._asked, self.likely, self._take = asked, guessed, native().ps_take_turn
        self._computing = 0  # nanoseconds, until the turn before

    def take(self, turn: int, live: int, lease: DividedLease, check: Callable[[], object]) -> float:
        lease.begin(live)
        described, idle, taken = self._described, 0, _NOT_YET
        while taken == _NOT_YET:
            taken = self._take(self._address, turn, live, GLANCE, False)
            idle += described.idle
            if taken == _NOT_YET:
                check()
        if taken == _NO_ROOM:
            lease.make_room()
            self._take(self._address, turn, live, GLANCE, True)
        before, self._computing = self._computing, described.computing
        lease.taken(self._asked[:live].copy(), (self._computing - before) * 1e-9)
        return idle * 1e-9

    def finish(self) -> None:
        native().ps_finish_turns()


def expert_work(
    experts: Sequence[CpuExpert], rows: int, count: int, threads: int
) -> list[Callable[[], None]]:
    """Steps in which so many rows need the same `count` experts, until each has had its turn."""
    groups = [experts[first : first + count] for first in range(0, len(experts), count)]
    return [_work(group, rows, threads) for group in groups if len(group) == min(count, len(experts))]


def _work(experts: Sequence[CpuExpert], rows: int, threads: int) -> Callable[[], None]:
    hidden, count = experts[0].weights[0].info.shape[1], len(experts)
    table = CpuExpertTable(count)
    for number, expert in enumerate(experts):
        table.put(number, expert)
    x = np.random.default_rng(0).standard_normal((rows, hidden)).astype(np.float32)
    ids = np.tile(np.arange(count, dtype=np.int64), (rows, 1))
    weights = np.full((rows, count), 1 / count, np.float32)
    out = np.zeros((rows, hidden), np.float32)

    def run() -> None:
        native().ps_experts(
            *(table.address, len(table), ids.ctypes.data, weights.ctypes.data, count, 10.0, None, 0.0),
            *(x.ctypes.data, rows, out.ctypes.data, False, threads),
        )

    return run
