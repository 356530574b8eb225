"""Which experts are in a device's slots, and what becomes of those that are not: bookkeeping without memory.

The engine and the replay of traces share it, so both count the same.  A turn only decides, in native code
(`native/tiers.h`): what follows from it for the cache and the counters is settled later, some turns together, while
the device computes.  So some slots are free most of the time.
"""

import ctypes
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.native import structs
from penstock.native.library import native
from penstock.storage.cache import Cache
from penstock.storage.gate import Gate
from penstock.storage.policies import Key, make_policy
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division

HALVED_AFTER: Final = 64  # turns with as many uses as there are slots: then what was counted counts half
SPARE: Final = (8, 32)  # slots, at least and at most, that are free when turns have been settled
SPARED: Final = 16  # of so many slots one is
TOGETHER: Final = (
    8  # turns that are settled together: one by one Python finds none of its memory in the caches
)
GUESSED: Final = 8  # experts that are on their way before anybody has asked for them
WORTH: Final = 0.25  # right ones of what was brought ahead, below which the link is better left alone
LONG: Final = 32  # rows of a step, beyond which experts only pass through the device


def fewest_slots(experts: int, used: int, passing: int) -> int:
    """What a step of few rows may need together, or a long one in two halves and one besides."""
    needed = max(passing + 1, min(experts, LONG * used))
    return next(slots for slots in count(needed) if capacity_of(slots) >= needed)


def capacity_of(slots: int) -> int:
    """Experts that stay in so many slots."""
    least, most = SPARE
    return max(1, slots - min(most, max(least, slots // SPARED)))


class Turn(NamedTuple):
    """A layer's experts by what is to be done with them; numbers ascend."""

    here: list[int]  # are in slots
    bring: dict[int, int]  # number → slot: to be copied there, and kept
    host: list[int]  # to be computed by the host


_HERE, _BRING, _HOST = range(3)  # what becomes of an expert


class _Decided(NamedTuple):
    """A turn, until the cache and the counters know of it."""

    block: int
    numbers: NDArray[np.int32]
    fates: NDArray[np.int32]
    on_disk: int
    ends: float
    admitted: bool  # the cache knows already


class Placement:
    """Experts of one kind and the slots of a device that hold some of them.

    blocks      of the model, those whose experts are of another kind too
    memory      what the host holds; None: all of them
    used        experts of a token
    passing     slots through which experts of long steps pass; those of the cache give way to them meanwhile
    long_slots  of all slots, those that the longest step leaves: the others' memory is its own meanwhile
    chunk       rows of that step; a shorter one leaves more, in steps of `step`.  0: all leave the same
    """

    def __init__(
        self,
        policy: str,
        slots: int,
        division: Division,
        counters: TierCounters,
        *,
        blocks: int,
        experts: int,
        used: int,
        memory: Cache | None = None,
        passing: int = 0,
        long_slots: int | None = None,
        chunk: int = 0,
        step: int = 1,
    ):
        self.cache = Cache(capacity_of(slots), make_policy(policy, slots), lambda _: 1)
        self.division, self.counters, self.memory = division, counters, memory
        self.experts, self.used = experts, used
        self._slot_of = np.full(blocks * experts, -1, np.int32)
        self._ahead = np.full(
            blocks * experts, -1, np.int32
        )  # slots of experts that nobody has asked for yet
        self._uses = np.zeros(blocks * experts, np.int32)
        self._numbers, self._fates = np.zeros((2, experts), np.int32)
        arrays = (self._slot_of, self._ahead, self._uses, self._numbers, self._fates)
        *keys, numbers, fates = (array.ctypes.data for array in arrays)
        self._described = structs.Placement(
            division.address, *keys, None, experts, used, self.cache.capacity, 0, 0, numbers, fates
        )
        self.address = ctypes.addressof(self._described)
        self.passing: list[int] = []  # slots of long steps, while there are any
        self._passing, self._slots = passing, slots
        self._long_slots = slots if long_slots is None else long_slots
        self._chunk, self._step = chunk, step
        self.left = slots  # by the long step under way
        self._counted = 0
        self._turns: list[_Decided] = []
        self._latest = 0  # the block of the turn that is being decided, or was last
        self._unjudged: int | None = None  # the block of the latest turn, until its guesses are judged
        self._guessed: list[Key] = []  # what was brought ahead, until their block's turn is settled
        self.gate = Gate(WORTH)
        self._double: dict[Key, None] = {}  # are in the host's memory too, those that came first in front
        self._all_free(slots)

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def long_slots(self) -> int:
        return self._long_slots

    @property
    def slot_of(self) -> dict[Key, int]:
        """Who is where."""
        keys = np.flatnonzero(self._slot_of >= 0)
        return dict(zip(keys.tolist(), self._slot_of[keys].tolist(), strict=True))

    @property
    def free(self) -> list[int]:
        """Slots that nobody has, the last one to go first."""
        found: list[int] = self._free[: self._described.free_count].tolist()
        return found

    def slots_of(self, block: int) -> NDArray[np.int32]:
        """Of each of its experts; −1: none."""
        return self._slot_of[block * self.experts : (block + 1) * self.experts]

    def _take(self) -> int:
        count = self._described.free_count = self._described.free_count - 1
        return int(self._free[count])

    def _give(self, slot: int) -> None:
        count = self._described.free_count
        self._free[count] = slot
        self._described.free_count = count + 1

    def reserve(self, key: Key) -> int:
        """A slot for an expert that is brought before anybody needs it, and stays."""
        self.settle()
        self._admit([key])
        slot = self._take()
        self._slot_of[key] = slot
        self._both([key])
        return slot

    # ── steps of few rows ─────────────────────────────────────────────────────────────────────────────────

    def turn(self, block: int, numbers: Sequence[int], rows: int) -> Turn:
        """What becomes of the experts that a layer needs; numbers ascend."""
        self.begin_turn(block, rows, len(numbers))
        ids = np.array(numbers, np.int64)
        absent = None
        if self.memory is not None:
            absent = np.zeros(self.experts, np.uint8)
            absent[ids] = [block * self.experts + number not in self.memory for number in numbers]
        found = native().ps_decide(
            *(self.address, block, ids.ctypes.data, len(ids), rows),
            None if absent is None else absent.ctypes.data,
        )
        if not found:
            self.make_room(block)
            native().ps_take_slots(self.address, block)
        self.decided(block, admitted=not found)
        fates, slot_of = self._fates[: len(ids)], self.slots_of(block)
        here, bring, host = (ids[fates == fate].tolist() for fate in (_HERE, _BRING, _HOST))
        return Turn(here, {number: int(slot_of[number]) for number in bring}, host)

    def is_full(self, block: int, rows: int, needed: int = 0) -> bool:
        """Whether turns have to be settled before one of this block and of so many rows begins, which needs so many
        experts if that is known."""
        if not self._turns:
            return False
        if block <= self._turns[-1].block:  # a new step, which counts by itself
            return True
        if self.memory is not None:  # what it holds follows from what the device was given
            return True
        needed = max(needed, min(rows * self.used, self.experts))
        return len(self._turns) >= TOGETHER or self._described.free_count < needed

    def begin_turn(self, block: int, rows: int, needed: int = 0) -> None:
        """A turn is about to be decided."""
        self._judge_guesses()
        self._latest, self._described.count = block, 0
        if self.is_full(block, rows, needed):
            self.settle()
        self.end_long()

    def decided(self, block: int, admitted: bool = False) -> int:
        """A turn of this block has been; how many experts are brought.  admitted: after `make_room`"""
        described, count = self._described, self._described.count
        turn = (self._numbers[:count].copy(), self._fates[:count].copy(), described.on_disk, described.ends)
        self._turns.append(_Decided(block, *turn, admitted))
        self._unjudged = block
        bring: int = described.bring
        return bring

    def make_room(self, block: int) -> None:
        """A turn of this block has been decided, and needs more slots than are free.  All before it are settled."""
        assert not self._turns
        count = self._described.count
        numbers, fates = self._numbers[:count], self._fates[:count]
        self._admit((numbers[fates != _HOST] + block * self.experts).tolist())

    def _kept(self, turn: _Decided) -> list[Key]:
        """What the device has of a turn.  Those before it, settled first, may have made some go."""
        keys = turn.numbers[turn.fates != _HOST] + turn.block * self.experts
        found: list[Key] = keys[self._slot_of[keys] >= 0].tolist()
        return found

    def ahead(self, block: int, numbers: Sequence[int], most: int) -> dict[int, int]:
        """Slots for those of these experts that the block's next turn is likely to miss, at most so many.  Until then
        they belong to nobody; what is not needed after all leaves its slot when that turn is settled."""
        found, described = dict[int, int](), self._described
        for number in numbers:
            if len(found) == most or not described.free_count or len(self._guessed) == GUESSED:
                break
            key = block * self.experts + number
            if self._slot_of[key] < 0 and self._ahead[key] < 0:
                found[number] = slot = self._take()
                self._ahead[key] = slot
                self._guessed.append(key)
        described.ahead_count += len(found)
        return found

    def _judge_guesses(self) -> None:
        """What was brought ahead for the latest turn and not needed leaves its slot: by the next one it is there."""
        block, self._unjudged = self._unjudged, None
        if block is None or not self._guessed:
            return
        right = self._described.claimed
        self.counters.ahead_right += right
        for _ in range(right):
            self.gate.judge(right=True)
        for key in [key for key in self._guessed if key // self.experts == block]:
            self._guessed.remove(key)
            slot = int(self._ahead[key])
            if slot >= 0:
                self._ahead[key] = -1
                self._described.ahead_count -= 1
                self._give(slot)
                self.counters.ahead_wrong += 1
                self.gate.judge(right=False)

    def settle(self) -> None:
        """The rest of the turns so far, which nobody has to wait for."""
        self._judge_guesses()
        turns, self._turns = self._turns, []
        for turn in turns:
            self._settle(turn)

    def _settle(self, turn: _Decided) -> None:
        if not turn.admitted:
            self._admit(self._kept(turn))
        count, numbers = len(turn.numbers), turn.numbers + turn.block * self.experts
        here, bring, host = np.bincount(turn.fates, minlength=3).tolist()
        if self.memory is not None and bring:
            self._both(numbers[turn.fates == _BRING].tolist())
        self._uses[numbers] += 1
        self._counted += count
        if self._counted >= HALVED_AFTER * self._slots:
            self._counted = 0
            self._uses >>= 1
        counters = self.counters
        counters.device_hits += here
        counters.device_misses += bring + host
        counters.memory_hits += bring + host - turn.on_disk
        counters.disk_reads += turn.on_disk
        counters.copied += bring
        counters.on_host += host
        counters.expected_seconds += turn.ends

    def _admit(self, keys: list[Key]) -> None:
        """The cache has these, and whoever has to go for them leaves a slot."""
        for _, _, evicted, _ in self.cache.request(keys):
            for gone in evicted:
                self._leaves(gone)

    def _leaves(self, key: Key) -> None:
        """The device has it no more, and its slot is free."""
        self._double.pop(key, None)
        slot = int(self._slot_of[key])
        self._slot_of[key] = -1
        self._give(slot)
        self.counters.device_evictions += 1

    def spared(self, block: int, numbers: Sequence[int]) -> list[Key]:
        """What the host may let go, because the device has it too, to make room for these experts.  Asked for before
        the host is asked for them, and after the device has used what it was brought before."""
        if self.memory is None or not self._double:
            return []
        base, memory = block * self.experts, self.memory
        wanted = [base + number for number in numbers]
        room = memory.capacity - memory.used - sum(memory.size_of(key) for key in wanted if key not in memory)
        found = []
        for key in list(self._double):
            if room >= 0:
                break
            if key in wanted:
                continue
            del self._double[key]
            if key in memory:
                room += memory.size_of(key)
                found.append(key)
        return found

    def _both(self, keys: Sequence[Key]) -> None:
        """Both the device and the host have these."""
        if self.memory is not None:
            self._double |= dict.fromkeys(keys)

    def lost(self, block: int, numbers: Sequence[int]) -> None:
        """These were to be brought and have not been."""
        self.settle()
        for key in (block * self.experts + number for number in numbers):
            self.cache.drop(key)
            if self._slot_of[key] >= 0:
                self._leaves(key)
                self.counters.device_evictions -= 1

    def give_up(self) -> None:
        """The device may not have brought what the latest turn was to bring."""
        count = self._described.count
        numbers: list[int] = self._numbers[:count][self._fates[:count] == _BRING].tolist()
        self.lost(self._latest, numbers)

    def _on_disk(self, base: int, missing: Sequence[int]) -> int:
        return 0 if self.memory is None else sum(base + number not in self.memory for number in missing)

    # ── steps of many rows ────────────────────────────────────────────────────────────────────────────────

    def long_turn(self, block: int, numbers: Sequence[int], rows: int) -> list[int]:
        """Of the experts that a layer of a long step needs, those that have to pass through; the others are here."""
        self.settle()
        self.begin_long(rows)
        base, counters = block * self.experts, self.counters
        here = [base + number for number in numbers if base + number in self.cache]
        for _ in self.cache.request(here):
            pass
        missing = [number for number in numbers if base + number not in self.cache]
        on_disk = self._on_disk(base, missing)
        counters.device_hits += len(here)
        counters.device_misses += len(missing)
        counters.memory_hits += len(missing) - on_disk
        counters.disk_reads += on_disk
        counters.passed += len(missing)
        return missing

    def begin_long(self, rows: int) -> None:
        """Steps of up to so many rows follow: some slots are theirs, and through some experts pass."""
        left = self._left_by(rows)
        if self.passing:
            if left >= self.left:
                return
            self.end_long()
        self.settle()
        self.left = left
        count = min(self._passing, (left - 1) // 2 * 2)  # two halves, and one slot besides
        self._leave(left)
        self._shrink(left - count)
        self.passing = [self._take() for _ in range(count)]

    def _left_by(self, rows: int) -> int:
        """Slots whose memory a step of so many rows does not need."""
        if not self._chunk:
            return self._long_slots
        gone = -(-(self._slots - self._long_slots) * min(rows, self._chunk) // self._chunk)
        return max(self._long_slots, (self._slots - gone) // self._step * self._step)

    def end_long(self) -> None:
        if self.passing:
            self.passing = []
            self._all_free(self._slots)
            self._resize_cache(capacity_of(self._slots))

    # ── less memory ───────────────────────────────────────────────────────────────────────────────────────

    def resize(self, slots: int, long_slots: int) -> None:
        """There are so many slots from now on, the first ones: experts in others are gone."""
        self.settle()
        self.end_long()
        self._slots, self._long_slots = slots, long_slots
        self._leave(slots)
        self._shrink(capacity_of(slots))

    def _leave(self, slots: int) -> None:
        """Only the first so many are used.  Nothing is on its way to any."""
        self._ahead[self._guessed] = -1
        self._guessed.clear()
        self._described.ahead_count = 0
        for key in np.flatnonzero(self._slot_of >= slots).tolist():
            self.cache.drop(key)
            self._leaves(key)
        self._all_free(slots)

    def _all_free(self, slots: int) -> None:
        free = np.setdiff1d(np.arange(slots, dtype=np.int32), self._slot_of)[::-1]
        self._free = np.zeros(slots, np.int32)
        self._free[: len(free)] = free
        self._described.free, self._described.free_count = self._free.ctypes.data, len(free)

    def _shrink(self, slots: int) -> None:
        for key in self._resize_cache(max(1, slots)):
            self._leaves(key)

    def _resize_cache(self, slots: int) -> list[Key]:
        self._described.capacity = slots
        return self.cache.resize(slots)
