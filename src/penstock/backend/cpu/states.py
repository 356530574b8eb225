"""The memory of sequences on the CPU: rings of recent rows, and rows that only ever grow.

A slot is one reservation of address space.  The system commits its pages as rows are written, so growing never
copies, and a sequence of a million-token model costs what it uses.
"""

import mmap
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backend.cpu.memory import view
from penstock.backend.state import DRAFTS, DTYPES, Rows, Series, StateLayout, StatePool
from penstock.machine.pages import reserve


class Staged(NamedTuple):
    """Rows of a step that wait outside of their ring, from row `first` on."""

    first: int
    rows: Rows


def in_place(rows: int) -> bool:
    """Whether a sequence's rows of a step go to spare places of the rings at once, which count when the position has
    moved: a token, and drafts after it."""
    return rows <= 1 + DRAFTS


class Slot:
    """The memory of one sequence.  series[n]: [capacity, width]"""

    def __init__(self, memory: mmap.mmap, series: list[Rows]):
        self.memory, self.series = memory, series
        self.addresses = np.array([rows.ctypes.data for rows in series], np.int64)  # [series]
        self.staged: dict[int, Staged] = {}  # by number of the series


class CpuStates(StatePool):
    def __init__(self, layout: StateLayout):
        self.layout = layout
        self.slots: dict[int, Slot] = {}
        self._numbers = count()
        self.capacities = [layout.capacity(series) for series in layout.series]
        self._offsets: list[int] = []
        self._bytes = 0
        for series, rows in zip(layout.series, self.capacities, strict=True):
            self._offsets.append(self._bytes)
            nbytes = rows * series.width * series.itemsize
            # Pages of different series are not shared: what has not been written costs nothing.
            self._bytes += -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def allocate(self) -> int:
        # A large page per series would charge a short session megabytes for kilobytes of rows.
        memory = reserve(self._bytes, large=False)
        parts = zip(self.layout.series, self.capacities, self._offsets, strict=True)
        series = [
            view(memory, offset, (rows, series.width), DTYPES[series.dtype]) for series, rows, offset in parts
        ]
        number = next(self._numbers)
        self.slots[number] = Slot(memory, series)
        return number

    def free(self, slot: int) -> None:
        self.slots.pop(slot, None)

    def copy(self, source: int, target: int, position: int) -> None:
        for series, theirs, mine in zip(
            self.layout.series, self.slots[source].series, self.slots[target].series, strict=True
        ):
            live = len(mine) if series.reach is not None else position // series.ratio
            mine[:live] = theirs[:live]

    def read(self, slot: int, series: int, first: int, last: int) -> Rows:
        rows = self.slots[slot].series[series]
        if self._grows(series):
            return rows[first:last]
        return rows[np.arange(first, last) % len(rows)]

    def write(self, slot: int, series: int, first: int, rows: Rows) -> None:
        """Of more rows than a ring has places the last ones stay."""
        own = self.slots[slot].series[series]
        if self._grows(series):
            own[first : first + len(rows)] = rows
            return
        skip = max(0, len(rows) - len(own))
        start, rows = first + skip, rows[skip:]
        at = start % len(own)
        until_end = min(len(rows), len(own) - at)
        own[at : at + until_end] = rows[:until_end]
        own[: len(rows) - until_end] = rows[until_end:]

    def _grows(self, series: int) -> bool:
        return self.layout.series[series].reach is None

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────

    def stage(self, slot: int, series: int, first: int, rows: int) -> Rows:
        """Memory for the last of `rows` rows from row `first` on, as many as the ring can keep, to be filled.  Few
        rows need none (`in_place`)."""
        own = self.slots[slot].series[series]
        kept = min(rows, len(own))
        memory = np.empty((kept, own.shape[1]), own.dtype)
        self.slots[slot].staged[series] = Staged(first + rows - kept, memory)
        return memory

    def keep(self, slot: int, series: int, first: int, rows: NDArray[Any]) -> None:
        """Rows of a step from row `first` on."""
        if len(rows) == 1:
            own = self.slots[slot].series[series]
            own[first % len(own)] = rows[0]
        elif in_place(len(rows)):
            self.write(slot, series, first, rows)
        else:
            self.stage(slot, series, first, len(rows))[...] = rows[-self.capacities[series] :]

    def latest(self, slot: int, series: int, row: int) -> NDArray[Any]:
        """One row [1, width] of a ring, which the step under way may have staged."""
        found = self.slots[slot]
        staged = found.staged.get(series)
        if staged is not None and row >= staged.first:
            rows, place = staged.rows, row - staged.first
        else:
            rows = found.series[series]
            place = row % len(rows)
        return rows[place : place + 1]

    def commit(self, slot: int, position: int) -> None:
        staged, self.slots[slot].staged = self.slots[slot].staged, {}
        for number, (first, rows) in staged.items():
            series: Series = self.layout.series[number]
            kept = max(0, position - series.lag) - first
            self.write(slot, number, first, rows[: max(0, kept)])

    def discard(self, slot: int) -> None:
        self.slots[slot].staged.clear()
