"""The processors' share of a layer's experts, where a device computes the others."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import ExpertTable
from penstock.backend.cpu.weights import CpuExpert, CpuExpertTable
from penstock.native.library import native

Floats = NDArray[np.float32]


class HostShare:
    """Σ weight · expert(x) over the experts of some tables, in ascending order of id, whatever comes when.

    rows   most of a step
    count  experts of a row
    """

    def __init__(self, rows: int, count: int, hidden: int, limit: float, threads: int):
        self._count, self._hidden, self._limit, self._threads = count, hidden, limit, threads
        self._terms = np.zeros((rows * count, hidden), np.float32)

    def run(
        self, tables: Iterable[ExpertTable], x: Floats, ids: NDArray[np.int64], weights: Floats, out: Floats
    ) -> bool:
        """x, out [rows, hidden], ids, weights [rows, count], all contiguous.  False: there was nothing to compute,
        and `out` is as it was."""
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


def expert_work(experts: Sequence[CpuExpert], rows: int, count: int, threads: int) -> "list[ExpertWork]":
    """Steps in which so many rows need the same `count` experts, until each has had its turn."""
    return [
        ExpertWork(experts[first : first + count], rows, threads)
        for first in range(0, len(experts) - count + 1, count)
    ]


class ExpertWork:
    """What some experts take, to be measured."""

    def __init__(self, experts: Sequence[CpuExpert], rows: int, threads: int):
        hidden, count = experts[0].weights[0].info.shape[1], len(experts)
        self._table = CpuExpertTable(count)
        for number, expert in enumerate(experts):
            self._table.put(number, expert)
        rng = np.random.default_rng(0)
        self._x = rng.standard_normal((rows, hidden)).astype(np.float32)
        self._ids = np.tile(np.arange(count, dtype=np.int64), (rows, 1))
        self._weights = np.full((rows, count), 1 / count, np.float32)
        self._out = np.zeros((rows, hidden), np.float32)
        self._share = HostShare(rows, count, hidden, 10.0, threads)

    def run(self) -> None:
        self._share.run([self._table], self._x, self._ids, self._weights, self._out)
