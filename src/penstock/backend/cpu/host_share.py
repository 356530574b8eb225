"""The processors' share of a layer's experts, where a device computes the others."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import ExpertTable, Vector
from penstock.backend.cpu.weights import CpuExpert, CpuExpertTable
from penstock.backend.device import HostShare
from penstock.native.library import native


class CpuShare(HostShare):
    def __init__(
        self, x: Vector, ids: NDArray[np.int64], weights: Vector, out: Vector, limit: float, threads: int
    ):
        self._kept = (x, ids, weights, out)
        rows, self._count = ids.shape
        self._hidden, self._limit, self._threads = x.shape[1], limit, threads
        self._terms = np.zeros((rows * self._count, self._hidden), np.float32)
        # Looked up once: it takes longer than a call.
        self._x, self._ids, self._weights, self._out = (array.ctypes.data for array in self._kept)
        self._to = self._terms.ctypes.data

    def run(self, tables: Iterable[ExpertTable], rows: int, once: bool = False) -> bool:
        found, library = False, native()
        for table in tables:
            assert isinstance(table, CpuExpertTable)
            given = (table.address, len(table), self._ids, self._weights, self._count, self._limit)
            if once:
                library.ps_experts(*given, None, 0.0, self._x, rows, self._out, False, self._threads)
                found = True
                continue
            if not found:
                self._terms[: rows * self._count] = 0.0  # of what others compute
                found = True
            library.ps_expert_terms(*given, None, 0.0, self._x, rows, self._to, self._threads)
        if found and not once:
            library.ps_expert_sum(
                *(self._ids, self._weights, rows, self._count, False, self._to, self._hidden, self._out),
                self._threads,
            )
        return found


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
    share = CpuShare(x, ids, weights, np.zeros((rows, hidden), np.float32), 10.0, threads)

    def run() -> None:
        share.run([table], rows, once=True)

    return run
