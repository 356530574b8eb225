"""Experts that come from the disk when they are needed and stay while they are worth their memory.

A layer's misses are all asked for at once.  While they are on their way, what is in memory already is computed, the
shared expert included.  With few rows experts are handed over as they arrive; with many in ascending order, the next
ones being read meanwhile, each one once for all rows.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Array, DeviceExpert, ExpertTable
from penstock.backend.device import HostBackend
from penstock.errors import ReadError
from penstock.storage.cache import Cache, Decision
from penstock.storage.counters import BlockCounters, Counters
from penstock.storage.heat import ExpertMap, Heat
from penstock.storage.prefetch import Prefetch, Transfer
from penstock.storage.reader import Reader
from penstock.storage.slots import Slot, Slots
from penstock.storage.source import ExpertSource
from penstock.storage.store import Lease, TableStore, ready_expert

IN_FLIGHT: Final = 12  # experts on their way while many rows wait for the next
# So many of them are computed at a time: meanwhile nothing new is asked for, and the disk must not run dry
TOGETHER: Final = 3


class Recorder(Protocol):
    """Whoever wants to know what was asked for."""

    def record(self, block: int, rows: int, experts: Sequence[int]) -> None: ...


class Location(NamedTuple):
    """Where an expert is: a slot of a tier's pool."""

    tier: str
    slot: Slot


class Entry(NamedTuple):
    location: Location
    expert: DeviceExpert


class Tier:
    """Memory for experts: a pool of slots, and the cache that decides who has one."""

    def __init__(self, name: str, cache: Cache, slots: Slots):
        self.name, self.cache, self.slots = name, cache, slots
        self.entries: dict[int, Entry] = {}  # by key

    def add(self, key: int, slot: Slot, expert: DeviceExpert) -> None:
        self.entries[key] = Entry(Location(self.name, slot), expert)

    def release(self, key: int) -> bool:
        """The expert's slot is free again.  False: it had none, evicted by the request that failed to bring it."""
        entry = self.entries.pop(key, None)
        if entry is not None:
            self.slots.give(entry.location.slot)
        return entry is not None


class StreamedExperts(TableStore):
    """Two tiers: what is not in memory is in `source`, on disk; `reader` moves it.  Used by one thread at a time."""

    def __init__(
        self,
        source: ExpertSource,
        backend: HostBackend,
        reader: Reader,
        cache: Cache,
        slots: Slots,
        prefetch: Prefetch,
        counters: Counters,
        *,
        recorder: Recorder | None = None,
    ):
        self.source, self.backend, self.reader = source, backend, reader
        self.memory = Tier("memory", cache, slots)
        self.prefetch, self.counters, self.recorder = prefetch, counters, recorder
        self.heat = Heat(source.blocks, source.experts)
        # In the cache before anybody asked, and on their way, by key.
        self._arriving: dict[int, Transfer] = {}
        self._share, self._lent = cache.capacity, 0
        self.table = backend.expert_table(source.experts)  # of the lease under way

    @property
    def cache(self) -> Cache:
        return self.memory.cache

    def acquire(self, block: str, ids: Array, following: Callable[[], None] | None = None) -> "StreamedLease":
        routed = self.backend.host(ids)
        numbers: list[int] = np.unique(routed).tolist()
        number = self.source.number(block)
        self.counters.requests += 1
        self.heat.use(block, routed)
        if self.recorder is not None and numbers:
            self.recorder.record(number, len(routed), numbers)
        return StreamedLease(self, number, numbers, following)

    def expect(self, block: str, ids: NDArray[np.int64]) -> None:
        self.prefetch.ask(self._absent(block, ids))

    def guess(self, block: str, ids: NDArray[np.int64]) -> None:
        self.prefetch.guess(self._absent(block, ids))

    @property
    def guessing(self) -> bool:
        return self.prefetch.guessing

    def _absent(self, block: str, ids: NDArray[np.int64]) -> list[int]:
        keys = (self.source.key(block, number) for number in np.unique(ids).tolist())
        return [key for key in keys if key not in self.cache]

    def map(self) -> ExpertMap:
        heat = self.heat.now()
        present = np.zeros(heat.shape, bool)
        # The copy is made at once, whatever comes and goes
        present.reshape(-1)[list(self.memory.entries)] = True
        return ExpertMap(self.heat.blocks, present, heat)

    # ── moving experts between the tiers ──────────────────────────────────────────────────────────────────

    def resize(self, capacity: int) -> None:
        """The cache may hold so many bytes from now on, less what it has lent."""
        self._share = capacity
        self._fit()

    def lend(self, nbytes: int) -> None:
        """So many bytes of the cache's share are somebody else's: whole experts give way, but the last few."""
        largest = max(self.source.slot_bytes)
        self._lent = -(-max(0, nbytes) // largest) * largest
        self._fit()

    def _fit(self) -> None:
        fewest = 2 * self.source.checkpoint.config.experts_used * max(self.source.slot_bytes)
        capacity = max(min(fewest, self._share), self._share - self._lent)
        if capacity == self.cache.capacity:
            return
        room = self.memory.slots.limit - self.cache.capacity
        for key in self.cache.resize(capacity):
            self.evict(key)
        self.memory.slots.resize(capacity + room)

    def preload(self, keys: Sequence[int]) -> None:
        """The cache begins with these experts, as many as fit, the first ones to stay longest.  They come while there
        is nothing else to read, the first ones first."""
        fitting, room = [], self.cache.capacity - self.cache.used
        for key in keys:
            room -= self.source.size_of(key)
            if room < 0:
                break
            fitting.append(key)
        for key in reversed(fitting):
            list(self.cache.request([key]))
        for key in fitting:
            self._arriving[key] = self.read(key, urgent=False)

    def evict(self, key: int) -> None:
        arriving = self._arriving.pop(key, None)
        if arriving is not None:
            if not self.reader.cancel(arriving.job):
                self.reader.wait_any([arriving.job])
            self.reader.drop(arriving.job)
            self.memory.slots.give(arriving.slot)
        if self.memory.release(key):
            self.counters.blocks[key // self.source.experts].evictions += 1

    def request(self, key: int) -> Transfer:
        """An expert that is not in memory is asked for, unless it is on its way already."""
        counters = self.counters.blocks[key // self.source.experts]
        counters.misses += 1
        counters.bytes_read += sum(stretch.length for stretch in self.source.bundle(key).stretches)
        return self.prefetch.claim(key) or self.read(key, urgent=True)

    def read(self, key: int, urgent: bool) -> Transfer:
        """Begins to bring an expert's bytes to a slot; who may keep it is not decided here."""
        slot = self.memory.slots.take(self.source.size_of(key))
        pieces = list(self.source.bundle(key).pieces(self.reader, slot.address))
        return Transfer(self.reader.submit(pieces, urgent=urgent), slot)

    def awaited(self, key: int) -> Transfer | None:
        """Somebody needs an expert of the cache now that was to come some time."""
        found = self._arriving.pop(key, None)
        if found is not None:
            self.reader.promote(found.job)
        return found

    def arrive(self, key: int, transfer: Transfer) -> DeviceExpert:
        """An expert's read has ended, well or not."""
        try:
            self.reader.wait(transfer.job)
        except ReadError as error:
            self.counters.read_errors += 1
            raise ReadError(f"{self.source.name(key)}: {error}") from None
        weights = self.source.weights(key, transfer.slot.memory)
        expert = ready_expert(self.backend, weights)
        self.memory.add(key, transfer.slot, expert)
        return expert

    def give_up(self, key: int, transfer: Transfer) -> None:
        self.reader.drop(transfer.job)
        self.memory.slots.give(transfer.slot)
        self.cache.drop(key)


class StreamedLease(Lease):
    """One layer's turn.  The cache decides key by key; a decision is carried out before the next one is made."""

    def __init__(
        self, store: StreamedExperts, block: int, numbers: list[int], following: Callable[[], None] | None
    ):
        self.store, self.block, self.following = store, block, following
        self.counters: BlockCounters = store.counters.blocks[block]
        self.keys = [block * store.source.experts + number for number in numbers]
        self.here: dict[int, DeviceExpert] = {}  # in memory and not yet handed over, by key
        self.coming: dict[int, Transfer] = {}  # by key
        self.decisions = store.cache.request(self.keys)
        self.decided: Decision | None = None  # and not yet carried out
        self.handed: list[int] = []  # keys of the table that was given last

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.decisions.close()
        if kind is not None:
            self._abandon()
        self.store.prefetch.settle(self.block)

    def _abandon(self) -> None:
        """Nothing of this layer remains that is not whole."""
        if self.decided is not None and not self.decided.hit:
            for gone in self.decided.evicted:
                self.store.evict(gone)
            self.store.cache.drop(self.decided.key)
        for key, transfer in self.coming.items():
            self.store.give_up(key, transfer)
        self.coming.clear()
        for key in self.keys:  # some may still be in the hands of whoever failed
            self.store.table.remove(key % self.store.source.experts)

    # ── handing over ──────────────────────────────────────────────────────────────────────────────────────

    def as_they_come(self) -> Iterator[ExpertTable]:
        for decision in self._each():
            while any(key in self.coming for key in decision.after):
                self._wait()
            if decision.after:  # their memory is wanted by others
                yield from self._hand_over(list(self.here))
            self._carry_out()
        if self.following is not None:
            self.following()
        self.requested = True
        self.last = not self.coming
        yield from self._hand_over(list(self.here))
        while self.coming:
            self._wait()
            self.last = not self.coming
            yield from self._hand_over(list(self.here))

    def in_order(self) -> Iterator[ExpertTable]:
        queue = list(reversed(self.keys))  # what has not been handed over; the next one is last

        def next_ones() -> Iterator[ExpertTable]:
            """The next expert, and those behind it that are here."""
            if queue[-1] in self.coming:
                self._wait(queue[-1])
            share: list[int] = []
            while queue and queue[-1] in self.here and (self.requested or len(share) < TOGETHER):
                share.append(queue.pop())
            self.last = not queue
            return self._hand_over(share)

        for decision in self._each():
            while any(key in queue for key in decision.after):
                yield from next_ones()
            self._carry_out()
            if len(self.coming) >= IN_FLIGHT:
                self._collect()
            # Hits are decided first: of those that are on their way there may be many before the next one is.
            if len(self.coming) >= IN_FLIGHT and (queue[-1] in self.coming or queue[-1] in self.here):
                yield from next_ones()
        self.requested = True
        while queue:
            yield from next_ones()

    def _hand_over(self, keys: list[int]) -> Iterator[ExpertTable]:
        """A table with these experts.  What the taker does before it asks for the next is computing."""
        table, experts = self.store.table, self.store.source.experts
        self.handed = keys
        for key in keys:
            table.put(key % experts, self.here.pop(key))
        begin = time.perf_counter()
        yield table
        self.counters.compute_seconds += time.perf_counter() - begin
        for key in keys:
            table.remove(key % experts)

    # ── decisions ─────────────────────────────────────────────────────────────────────────────────────────

    def _each(self) -> Iterator[Decision]:
        for decision in self.decisions:
            self.decided = decision
            yield decision

    def _carry_out(self) -> None:
        """What was decided last."""
        assert self.decided is not None
        store, (key, hit, evicted, _) = self.store, self.decided
        for gone in evicted:
            store.evict(gone)
        if hit:
            self.counters.hits += 1
            arriving = store.awaited(key)
            if arriving is None:
                self.here[key] = store.memory.entries[key].expert
            else:
                self.coming[key] = arriving
        else:
            self.coming[key] = store.request(key)
        self.decided = None

    def _wait(self, key: int | None = None) -> None:
        """Until this expert is here, or any; those that have come meanwhile are here too then."""
        store = self.store
        keys = list(self.coming) if key is None else [key]
        begin = time.perf_counter()
        store.reader.wait_any([self.coming[each].job for each in keys])
        self.counters.stall_seconds += time.perf_counter() - begin
        self._collect()

    def _collect(self) -> None:
        """Those that have come are here."""
        store = self.store
        for each in [each for each, transfer in self.coming.items() if store.reader.poll(transfer.job)]:
            expert = store.arrive(each, self.coming[each])
            del self.coming[each]
            self.here[each] = expert
