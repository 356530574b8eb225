"""The processors' share of a layer's experts, where a device computes the others."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import ExpertTable, HostShare, Vector
from penstock.backend.cpu.weights import CpuExpert, CpuExpertTable
from penstock.native.library import native


class CpuShare(HostShare):
    def __init__(self, rows: int, count: int, hidden: int, limit: float, threads: int):
        self._count, self._hidden, self._limit, self._threads = count, hidden, limit, threads
        self._terms = np.zeros((rows * count, hidden), np.float32)

    def run(
        self, tables: Iterable[ExpertTable], x: Vector, ids: NDArray[np.int64], weights: Vector, out: Vector
    ) -> bool:
        rows, found = len(x), False
        for table in tables:
            assert isinstance(table, CpuExpertTable)
            if not found:
                self._terms[: rows * self._count] = 0.0  # of what others compute
                found = True
            native().ps_expert_terms(
                *(table.address, len(table), ids.ctypes.data, weights.ctypes.data, self._count, self._limit),
                *(None, 0.0, x.ctypes.data, rows, self._terms.ctypes.data, self._threads),
            )
        if found:
            native().ps_expert_sum(
                *(ids.ctypes.data, weights.ctypes.data, rows, self._count, False, self._terms.ctypes.data),
                *(self._hidden, out.ctypes.data, self._threads),
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
    share, out = CpuShare(rows, count, hidden, 10.0, threads), np.zeros((rows, hidden), np.float32)

    def run() -> None:
        share.run([table], x, ids, weights, out)

    return run
