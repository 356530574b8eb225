"""Experts that are read before anybody has asked for them, because it is known or likely that somebody will.

They have slots of their own, so that a wrong guess drives out nothing that is in use; a right one becomes a cache
entry like any other when it is asked for.  Reads that somebody waits for go first.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.storage.counters import Counters
from penstock.storage.gate import Gate
from penstock.storage.reader import Reader
from penstock.storage.slots import Slot, Slots
from penstock.storage.source import ExpertSource

GUESSED_ROWS: Final = 4  # with more, what the next layer wants is too much to read ahead
WORTH: Final = 0.4  # right guesses of all, below which the disk's time is better left alone


class Transfer(NamedTuple):
    """An expert on its way to memory."""

    job: int
    slot: Slot


class Prefetch:
    """Reads ahead of need into at most `room` bytes."""

    def __init__(self, source: ExpertSource, reader: Reader, slots: Slots, room: int, counters: Counters):
        self.source, self.reader, self.slots, self.room, self.counters = source, reader, slots, room, counters
        self._transfers: dict[int, Transfer] = {}
        self._used = 0
        self._gate = Gate(WORTH)
        self._guessed: set[int] = set()
        self._unwanted: list[Transfer] = []  # still being read

    def ask(self, keys: Iterable[int]) -> None:
        """Reads those of the keys that there is room for."""
        self._clean_up()
        for key in keys:
            size = self.source.size_of(key)
            if key in self._transfers:
                continue
            if self._used + size > self.room:
                return
            slot = self.slots.take(size)
            pieces = list(self.source.bundle(key).pieces(self.reader, slot.address))
            self._transfers[key] = Transfer(self.reader.submit(pieces, urgent=False), slot)
            self._used += size
            self.counters.prefetch_issued += 1

    def guess(self, keys: Iterable[int]) -> None:
        """The same for keys that are only likely.  Gives up for a while when too few of them turn out right."""
        if not self._gate.passes():
            return
        for key in keys:
            if key not in self._transfers:
                self.ask([key])
                if key in self._transfers:
                    self._guessed.add(key)

    @property
    def guessing(self) -> bool:
        return self._gate.open

    def claim(self, key: int) -> Transfer | None:
        """What was read ahead is needed now; None if it was not.  The slot is the caller's."""
        found = self._transfers.pop(key, None)
        if found is not None:
            self._used -= self.source.size_of(key)
            self.reader.promote(found.job)
            self.counters.prefetch_useful += 1
            self._judge(key, right=True)
        return found

    def settle(self, block: int) -> None:
        """The block has asked for what it needs; of its experts nobody will want those that are left."""
        for key in [key for key in self._transfers if key // self.source.experts == block]:
            self._forget(key)
            self.counters.prefetch_wasted += 1
            self._judge(key, right=False)

    def clear(self) -> None:
        for key in list(self._transfers):
            self._forget(key)
        for transfer in self._unwanted:
            self.reader.wait_any([transfer.job])
        self._clean_up()

    def _forget(self, key: int) -> None:
        """A slot cannot be given back while something is being read to it, and nobody is to wait for that."""
        self._unwanted.append(self._transfers.pop(key))
        self._clean_up()

    def _clean_up(self) -> None:
        reading = []
        for transfer in self._unwanted:
            if self.reader.poll(transfer.job) or self.reader.cancel(transfer.job):
                self.reader.drop(transfer.job)
                self._used -= transfer.slot.memory.size
                self.slots.give(transfer.slot)
            else:
                reading.append(transfer)
        self._unwanted = reading

    def _judge(self, key: int, right: bool) -> None:
        if key not in self._guessed:
            return
        self._guessed.discard(key)
        self.counters.guesses += 1
        self.counters.guesses_right += right
        self._gate.judge(right)
