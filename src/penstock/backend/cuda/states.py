"""The memory of sequences on a card: rings of recent rows, and rows that only ever grow.

A slot is one reservation of addresses.  Rings come first; behind them, for every ratio, the rows of all series with
that ratio side by side: row r of one series lies next to row r of the others.  So a longer sequence needs a page more
here and there, not one for every layer, and a copy of a sequence is a copy of three stretches.

Rows of a step go straight to their places.  Rings have room for `STEP_ROWS` tokens more than must be kept, so nothing
that still counts is replaced before the step is committed, and a step that fails changes nothing.
"""

from itertools import count
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend.cuda.attention import RowsAt
from penstock.backend.cuda.device import CudaError, translated
from penstock.backend.cuda.memory import Pages, Reservation
from penstock.backend.state import DTYPES, Rows, StateLayout, StatePool

STEP_ROWS: Final = 64  # tokens of one sequence in a step, at most
ALIGNMENT: Final = 256


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


class SlotLayout:
    """Where the series of a layout lie in a slot."""

    def __init__(self, layout: StateLayout, page: int, step_rows: int = STEP_ROWS):
        self.places: list[RowsAt] = []
        self.rings = 0  # bytes of all rings
        self.regions: dict[int, tuple[int, int, int]] = {}  # ratio → start, bytes of a row of all, rows
        offsets: dict[int, int] = {}  # by number of the series, within a row of its ratio
        widths: dict[int, int] = {}
        for number, series in enumerate(layout.series):
            row = series.width * series.itemsize
            if series.reach is None:
                offsets[number] = widths.get(series.ratio, 0)
                widths[series.ratio] = _up(offsets[number] + row, 16)
                continue
            apart, rows = _up(row, 16), layout.capacity(series) + step_rows
            self.places.append(RowsAt(self.rings, apart, rows))
            self.rings = _up(self.rings + rows * apart, ALIGNMENT)
        start = _up(self.rings, page)
        for ratio, width in sorted(widths.items()):
            rows = layout.context // ratio + 1
            self.regions[ratio] = (start, width, rows)
            start += _up(rows * width, page)
        self.nbytes = max(start, page)
        rings, self.places = iter(self.places), []
        for number, series in enumerate(layout.series):
            if series.reach is None:
                begin, width, rows = self.regions[series.ratio]
                self.places.append(RowsAt(begin + offsets[number], width, rows))
            else:
                self.places.append(next(rings))

    def committed(self, position: int, page: int) -> int:
        """Bytes of memory of a sequence that has read so many tokens."""
        total = _up(max(1, self.rings), page)
        for ratio, (_, width, _) in self.regions.items():
            total += _up((position // ratio + 1) * width, page)
        return total


class CudaStates(StatePool):
    """limit: bytes that all slots may take together; None: what the card has"""

    def __init__(self, layout: StateLayout, pages: Pages, limit: int | None = None):
        self.layout, self.limit = layout, limit
        self._pages = pages
        self.slot_layout = SlotLayout(layout, pages.size)
        self._slots: dict[int, Reservation] = {}
        self._numbers = count()
        self._freed: list[Reservation] = []
        self._ready: dict[int, int] = {}  # slot → tokens that it has memory for
        self._staged: dict[int, torch.Tensor] = {}  # slot → its rings as a long step leaves them

    @property
    def places(self) -> list[RowsAt]:
        return self.slot_layout.places

    @property
    def committed(self) -> int:
        """Bytes of memory in use."""
        return sum(slot.committed for slot in self._slots.values())

    def allocate(self) -> int:
        with translated("memory for a session"):
            self._reclaim()
            number = next(self._numbers)
            self._slots[number] = Reservation(self._pages, self.slot_layout.nbytes)
            try:
                self.ensure(number, 0)
            except BaseException:
                self.free(number)
                raise
        return number

    def free(self, slot: int) -> None:
        """The memory goes back when the card is done with it: whoever calls this may be in the middle of a step."""
        found = self._slots.pop(slot, None)
        self._ready.pop(slot, None)
        self._staged.pop(slot, None)
        if found is not None:
            self._freed.append(found)

    def _reclaim(self) -> None:
        if self._freed:
            self._pages.wait()
            while self._freed:
                self._freed.pop().close()

    def address(self, slot: int) -> int:
        return self._slots[slot].address

    def stage(self, slot: int) -> int:
        """The address of a copy of the rings, which becomes part of the state when the step is committed: for steps
        that are longer than rings have room for."""
        if slot not in self._staged:
            self._staged[slot] = self._pages.view(self.address(slot), self.slot_layout.rings).clone()
        return self._staged[slot].data_ptr()

    def writable(self, slot: int) -> int:
        """Where rings are written: their address, or that of their copy while a long step is under way."""
        return self._staged[slot].data_ptr() if slot in self._staged else self.address(slot)

    def ensure(self, slot: int, position: int) -> None:
        """Memory for the rows of the first `position` tokens."""
        if position <= self._ready.get(slot, -1):
            return
        found = self._slots[slot]
        stretches = [(0, self.slot_layout.rings)]
        for ratio, (start, width, rows) in self.slot_layout.regions.items():
            stretches.append((start, start + min(rows, position // ratio + 1) * width))
        missing = sum(found.missing(*stretch) for stretch in stretches)
        if missing and self.limit is not None and self.committed + missing > self.limit:
            self._reclaim()
            if self.committed + missing > self.limit:
                raise CudaError(
                    f"sessions take {(self.committed + missing) / 2**20:,.0f} MiB of the GPU's memory and may "
                    f"take {self.limit / 2**20:,.0f}: end some, or give more vram"
                )
        for stretch in stretches:
            found.commit(*stretch)
        # Pages hold more rows than were asked for.
        self._ready[slot] = max(position, self._covered(found))

    def _covered(self, slot: Reservation) -> int:
        """Tokens whose rows all have memory."""
        least = self.layout.context
        for ratio, (start, width, rows) in self.slot_layout.regions.items():
            have = slot.contiguous(start, start + rows * width)
            least = min(least, (have // width - 1) * ratio)
        return least

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────────────

    def _rows(self, slot: int, series: int, first: int, last: int, base: int | None = None) -> torch.Tensor:
        """uint8 [rows, bytes of a row], a view; base: of another place than the slot"""
        place, described = self.places[series], self.layout.series[series]
        width, rows = described.width * described.itemsize, last - first
        start = (self.address(slot) if base is None else base) + place.at + first * place.apart
        whole = self._pages.view(start, (rows - 1) * place.apart + width)
        return whole.as_strided((rows, width), (place.apart, 1))

    def _ring(self, slot: int, series: int, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A whole ring, and where in it the rows are."""
        capacity = self.places[series].capacity
        ring = self._rows(slot, series, 0, capacity)
        return ring, torch.arange(first, last, device=ring.device) % capacity

    def _grows(self, series: int) -> bool:
        return self.layout.series[series].reach is None

    def read(self, slot: int, series: int, first: int, last: int) -> Rows:
        described = self.layout.series[series]
        if last <= first:
            return np.empty((0, described.width), DTYPES[described.dtype])
        with translated("reading a session"):
            if self._grows(series):
                found = self._rows(slot, series, first, last).contiguous()
            else:
                ring, where = self._ring(slot, series, first, last)
                found = ring[where]
            host: NDArray[Any] = found.cpu().numpy()
        return host.view(DTYPES[described.dtype])

    def write(self, slot: int, series: int, first: int, rows: Rows) -> None:
        """Of more rows than a ring has places the last ones stay."""
        described = self.layout.series[series]
        if not len(rows):
            return
        raw = np.ascontiguousarray(rows, DTYPES[described.dtype]).view(np.uint8).reshape(len(rows), -1)
        with translated("writing a session"):
            if self._grows(series):
                self.ensure(slot, (first + len(rows)) * described.ratio)
                self._rows(slot, series, first, first + len(rows)).copy_(torch.from_numpy(raw.copy()))
                return
            capacity = self.places[series].capacity
            skip = max(0, len(raw) - capacity)
            ring, where = self._ring(slot, series, first + skip, first + len(raw))
            ring[where] = torch.from_numpy(raw[skip:].copy()).to(ring.device)

    def put(self, slot: int, series: int, first: int, rows: torch.Tensor) -> None:
        """Rows of a step, float32 on the card [rows, width], into a ring of floats."""
        capacity = self.places[series].capacity
        kept = rows[-capacity:]
        ring = self._rows(slot, series, 0, capacity, self.writable(slot))
        where = torch.arange(first + len(rows) - len(kept), first + len(rows), device=ring.device) % capacity
        ring[where] = kept.contiguous().view(torch.uint8)

    def get(self, slot: int, series: int, row: int) -> torch.Tensor:
        """One row of a ring of floats [width]"""
        ring, where = self._ring(slot, series, row, row + 1)
        return ring[where].view(torch.float32)[0]

    def copy(self, source: int, target: int, position: int) -> None:
        with translated("copying a session"):
            self.ensure(target, position)
            stretches = [(0, self.slot_layout.rings)]
            for ratio, (start, width, _) in self.slot_layout.regions.items():
                stretches.append((start, (position // ratio) * width))
            for start, nbytes in stretches:
                if nbytes:
                    there, here = self.address(target) + start, self.address(source) + start
                    self._pages.view(there, nbytes).copy_(self._pages.view(here, nbytes))

    def commit(self, slot: int, position: int) -> None:
        """Everything is in its place already, but for what a long step has staged."""
        del position  # rings have room for as many rows behind it as a step may take back
        staged = self._staged.pop(slot, None)
        if staged is not None:
            self._pages.view(self.address(slot), len(staged)).copy_(staged)

    def discard(self, slot: int) -> None:
        """What the step has written lies where nothing counts."""
        self._staged.pop(slot, None)

    def close(self) -> None:
        """Gives all memory back; the pool cannot be used afterwards."""
        self._freed += self._slots.values()
        self._slots.clear()
        self._reclaim()
