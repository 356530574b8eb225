"""Which experts are in a device's slots, and what becomes of those that are not: bookkeeping without memory.

The engine and the replay of traces share it, so both count the same.  A turn only decides: what follows from it for
the cache and the counters is settled later, while the device computes.  So a few slots are always free.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.storage.cache import Cache
from penstock.storage.gate import Gate
from penstock.storage.policies import Key, make_policy
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division

HALVED_AFTER: Final = 64  # turns with as many uses as there are slots: then what was counted counts half
SPARE: Final = 8  # slots that are free when a turn begins
WORTH: Final = 0.25  # right ones of what was brought ahead, below which the link is better left alone
LONG: Final = 32  # rows of a step, beyond which experts only pass through the device


def fewest_slots(experts: int, used: int, passing: int) -> int:
    """What a step of few rows may need together, or a long one in two halves and one besides."""
    return max(passing + 1, min(experts, LONG * used)) + SPARE


def _capacity(slots: int) -> int:
    return max(1, slots - SPARE)


class Turn(NamedTuple):
    """A layer's experts by what is to be done with them; numbers ascend."""

    here: list[int]  # are in slots
    bring: dict[int, int]  # number → slot: to be copied there, and kept
    host: list[int]  # to be computed by the host


class _Unsettled(NamedTuple):
    """A turn of which the cache does not know yet."""

    base: int
    numbers: Sequence[int]
    turn: Turn
    on_disk: int
    admitted: bool  # the cache knows


class Placement:
    """Experts of one kind and the slots of a device that hold some of them.

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
        experts: int,
        used: int,
        memory: Cache | None = None,
        passing: int = 0,
        long_slots: int | None = None,
        chunk: int = 0,
        step: int = 1,
    ):
        self.cache = Cache(_capacity(slots), make_policy(policy, slots), lambda _: 1)
        self.division, self.counters, self.memory = division, counters, memory
        self.experts, self.used = experts, used
        self.slot_of: dict[Key, int] = {}
        self.free = list(range(slots - 1, -1, -1))
        self.passing: list[int] = []  # slots of long steps, while there are any
        self._passing, self._slots = passing, slots
        self._long_slots = slots if long_slots is None else long_slots
        self._chunk, self._step = chunk, step
        self.left = slots  # by the long step under way
        self._uses: dict[Key, int] = defaultdict(int)
        self._counted = 0
        self._unsettled: _Unsettled | None = None
        self._ahead: dict[Key, int] = {}  # slots of experts that nobody has asked for yet
        self.gate = Gate(WORTH)
        self._double: dict[Key, None] = {}  # are in the host's memory too, those that came first in front

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def long_slots(self) -> int:
        return self._long_slots

    def reserve(self, key: Key) -> int:
        """A slot for an expert that is brought before anybody needs it, and stays."""
        self.settle()
        self._admit([key])
        self.slot_of[key] = self.free.pop()
        self._both([key])
        return self.slot_of[key]

    # ── steps of few rows ─────────────────────────────────────────────────────────────────────────────────

    def turn(self, block: int, numbers: Sequence[int], rows: int) -> Turn:
        """What becomes of the experts that a layer needs; numbers ascend."""
        self.settle()
        self.end_long()
        base, slot_of = block * self.experts, self.slot_of
        here: list[int] = []
        missing: list[int] = []
        if self._ahead:
            self._claim([base + number for number in numbers])
        for number in numbers:
            (here if base + number in slot_of else missing).append(number)
        host, bring, on_disk, admitted = list[int](), dict[int, int](), 0, False
        if missing:
            on_disk = self._on_disk(base, missing)
            host = self._share(base, missing, on_disk, len(numbers), rows)
            if len(missing) - len(host) > len(self.free):
                self._admit([base + number for number in numbers if number not in host])
                admitted = True
            for number in missing:
                if number not in host:
                    slot_of[base + number] = bring[number] = self.free.pop()
        found = Turn(here, bring, host)
        self._unsettled = _Unsettled(base, numbers, found, on_disk, admitted)
        return found

    def _share(self, base: int, missing: list[int], on_disk: int, count: int, rows: int) -> list[int]:
        """Of the missing experts, those that the host computes."""
        share = self.division.host_share(len(missing), on_disk, max(1.0, rows * self.used / count))
        share = max(share, count - self.cache.capacity)  # what there is no slot for
        if not 0 < share < len(missing):
            return missing if share else []
        # Those that are used least stay where they are: what the link has carried is to be worth it.
        uses = self._uses
        return sorted(sorted(missing, key=lambda number: (uses[base + number], number))[:share])

    def ahead(self, block: int, numbers: Sequence[int], most: int) -> dict[int, int]:
        """Slots for those of these experts that the block's next turn is likely to miss, at most so many.  Until then
        they belong to nobody; what is not needed after all leaves its slot when that turn is settled."""
        base, found = block * self.experts, dict[int, int]()
        for number in numbers:
            if len(found) == most or not self.free or len(self._ahead) == SPARE:
                break
            key = base + number
            if key not in self.slot_of and key not in self._ahead:
                self._ahead[key] = found[number] = self.free.pop()
        return found

    def _claim(self, keys: Sequence[Key]) -> None:
        """What was brought ahead and is needed now."""
        for key in keys:
            slot = self._ahead.pop(key, None)
            if slot is not None:
                self.slot_of[key] = slot
                self.counters.ahead_right += 1
                self.gate.judge(right=True)

    def _leave_ahead(self, block: int) -> None:
        """What was brought ahead for a block and not needed leaves its slot.  By the next turn it is there."""
        for key in [key for key in self._ahead if key // self.experts == block]:
            self.free.append(self._ahead.pop(key))
            self.counters.ahead_wrong += 1
            self.gate.judge(right=False)

    def settle(self) -> None:
        """The rest of a turn, which nobody has to wait for."""
        if self._unsettled is None:
            return
        (base, numbers, (here, bring, host), on_disk, admitted), self._unsettled = self._unsettled, None
        if self._ahead:
            self._leave_ahead(base // self.experts)
        if not admitted:
            self._admit([base + number for number in numbers if number not in host])
        self._both([base + number for number in bring])
        for number in numbers:
            self._uses[base + number] += 1
        self._counted += len(numbers)
        if self._counted >= HALVED_AFTER * self._slots:
            self._counted = 0
            for key, count in self._uses.items():
                self._uses[key] = count // 2
        counters = self.counters
        missing = len(bring) + len(host)
        counters.device_hits += len(here)
        counters.device_misses += missing
        counters.memory_hits += missing - on_disk
        counters.disk_reads += on_disk
        counters.copied += len(bring)
        counters.on_host += len(host)

    def _admit(self, keys: list[Key]) -> None:
        """The cache has these, and whoever has to go for them leaves a slot."""
        for _, _, evicted, _ in self.cache.request(keys):
            for gone in evicted:
                self._gone(gone)
                self.free.append(self.slot_of.pop(gone))
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

    def _gone(self, key: Key) -> None:
        """The device has it no more."""
        self._double.pop(key, None)

    def lost(self, block: int, numbers: Sequence[int]) -> None:
        """These were to be brought and have not been."""
        self.settle()
        for key in (block * self.experts + number for number in numbers):
            self.cache.drop(key)
            self._gone(key)
            self.free.append(self.slot_of.pop(key))

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
        self.passing = [self.free.pop() for _ in range(count)]

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
            self.cache.resize(_capacity(self._slots))

    # ── less memory ───────────────────────────────────────────────────────────────────────────────────────

    def resize(self, slots: int, long_slots: int) -> None:
        """There are so many slots from now on, the first ones: experts in others are gone."""
        self.settle()
        self.end_long()
        self._slots, self._long_slots = slots, long_slots
        self._leave(slots)
        self._shrink(_capacity(slots))

    def _leave(self, slots: int) -> None:
        """Only the first so many are used.  Nothing is on its way to any."""
        self._ahead.clear()
        for key in [key for key, slot in self.slot_of.items() if slot >= slots]:
            self.cache.drop(key)
            self._gone(key)
            del self.slot_of[key]
            self.counters.device_evictions += 1
        self._all_free(slots)

    def _all_free(self, slots: int) -> None:
        taken = set(self.slot_of.values())
        self.free = [slot for slot in range(slots - 1, -1, -1) if slot not in taken]

    def _shrink(self, slots: int) -> None:
        for key in self.cache.resize(max(1, slots)):
            self._gone(key)
            self.free.append(self.slot_of.pop(key))
            self.counters.device_evictions += 1
