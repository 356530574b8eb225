"""Three tiers as one store: slots of a device, the host's memory, the disk.

A step of few rows: what the device lacks is divided; copies to it begin, the host computes its own share while they
are under way, and what has to come from the disk joins one of the two when it is there.  A step of many rows: every
expert passes through the device, the next ones being copied while those before are computed.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import (
    Array,
    AtHand,
    DividedLease,
    ExpertSlots,
    ExpertTable,
    HostExpert,
    OpenTable,
    Wave,
)
from penstock.storage.heat import ExpertMap, Heat
from penstock.storage.policies import Key
from penstock.storage.store import ExpertStore
from penstock.storage.streamed import Recorder
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division
from penstock.storage.tiers.host import HostTier, MappedTier, StreamedTier
from penstock.storage.tiers.pace import Pacer
from penstock.storage.tiers.passing import Passing
from penstock.storage.tiers.placement import LONG, Placement, Turn
from penstock.storage.tiers.plan import Kind

# Experts of the next layer that are brought before it asks: the link rests for about one of them
AHEAD: Final = 2


class Pool(NamedTuple):
    """Experts of one kind: the device's slots for them, who has one, and how long steps pass through."""

    placement: Placement
    slots: ExpertSlots
    passing: Passing
    kind: Kind


class TieredExperts(ExpertStore):
    """Used by one thread at a time.

    pools  by block number; blocks whose experts are alike share one
    table  for what the host computes
    """

    def __init__(
        self,
        host: HostTier,
        pools: Sequence[Pool],
        counters: TierCounters,
        table: OpenTable,
        division: Division,
        *,
        recorder: Recorder | None = None,
    ):
        self.host, self.pools, self.counters, self.table = host, pools, counters, table
        self.division = division
        self.recorder, self.source = recorder, host.source
        self.heat = Heat(self.source.blocks, self.source.experts)
        self.places = np.full(self.source.experts, -1, np.int32)
        self.pacer = Pacer(counters, self.source.checkpoint.config.layer_count)
        self._long_rows = 0  # of the longest step since the last short one
        self._lent = self._withheld = 0  # bytes of the device
        self._noted: list[tuple[TieredLease, NDArray[np.int64]]] = []  # turns, until they are settled
        self._leases = [TieredLease(self, number, pool) for number, pool in enumerate(pools)]

    def acquire(self, block: str, ids: Array, following: Callable[[], None] | None = None) -> "TieredLease":
        del ids, following  # not known yet: the lease is asked when they are
        return self._leases[self.source.number(block)]

    def expect(self, block: str, ids: NDArray[np.int64]) -> None:
        if isinstance(self.host, StreamedTier):
            absent = self._absent(self.source.number(block), np.unique(ids).tolist())
            self.host.store.expect(block, absent)

    def ahead(self, block: int, numbers: Sequence[int]) -> None:
        """A block is likely to need these, the first ones most: some are brought while the link has nothing to do."""
        host, (placement, slots, _, _) = self.host, self.pools[block]
        if isinstance(host, StreamedTier):
            host.store.guess(self.source.blocks[block], self._absent(block, numbers))
        elif isinstance(host, MappedTier) and placement.gate.passes():
            base, coming = block * self.source.experts, placement.ahead(block, numbers, AHEAD)
            for number, slot in coming.items():
                slots.bring(slot, host.expert(base + number))
            self.counters.link_bytes += len(coming) * self.expert_bytes(block)

    def note(self, lease: "TieredLease", ids: NDArray[np.int64]) -> None:
        """A turn for these, ids [rows, count], has been decided."""
        self._noted.append((lease, ids))
        if self.recorder is not None:
            self.recorder.record(lease.block, len(ids), sorted(set(ids.ravel().tolist())))

    def settle(self) -> None:
        """What can be done about the turns so far while the device computes."""
        for placement in self.placements:
            placement.settle()
        noted, self._noted = self._noted, []
        for lease, ids in noted:
            self.heat.use(lease.name, ids)

    def _absent(self, block: int, numbers: Sequence[int]) -> NDArray[np.int64]:
        """Those that the device does not have."""
        cache, base = self.pools[block].placement.cache, block * self.source.experts
        return np.array([number for number in numbers if base + number not in cache], np.int64)

    def map(self) -> ExpertMap:
        heat = self.heat.now()
        tiers = np.zeros(heat.size, np.uint8)
        if isinstance(self.host, StreamedTier):
            # The copy is made at once, whatever comes and goes
            tiers[list(self.host.store.memory.entries)] = 1
        else:
            tiers[:] = 1
        for placement in self.placements:
            tiers[list(placement.slot_of)] = 2
        by_block = tiers.reshape(heat.shape)
        return ExpertMap(self.heat.blocks, by_block > 0, heat, by_block)

    @property
    def placements(self) -> list[Placement]:
        """Each once."""
        return [pool.placement for pool in self._each_pool()]

    def preload(self, keys: Sequence[Key]) -> None:
        """The device begins with these experts, as many as fit, the first ones to stay longest."""
        experts, room = self.source.experts, {id(each): each.cache.capacity for each in self.placements}
        chosen = []
        for key in keys:
            placement = self.pools[key // experts].placement
            if room[id(placement)] > 0:
                room[id(placement)] -= 1
                chosen.append(key)
        bring: dict[int, dict[int, int]] = {}
        for key in reversed(chosen):
            block, number = divmod(key, experts)
            bring.setdefault(block, {})[number] = self.pools[block].placement.reserve(key)
        for block, slots in sorted(bring.items()):
            pool = self.pools[block]
            self.host.forget(pool.placement.spared(block, sorted(slots)))
            with self.host.lend(block, sorted(slots), True, pool.slots.wait) as arrivals:
                for some in arrivals:
                    pool.slots.bring_all([slots[number] for number in some], list(some.values()))
            self.counters.link_bytes += len(slots) * self.expert_bytes(block)
            pool.slots.wait()

    def begin_step(self, rows: int) -> bool:
        """Slots make room for the rows of a long step, or take it back after the last.  True: working memory of long
        steps is not needed any more, and is to be given back before `end_long`."""
        if rows <= LONG:
            before, self._long_rows = self._long_rows, 0
            return before > 0
        if rows > self._long_rows:
            self._long_rows = rows
            for pool in self._each_pool():
                pool.passing.forget()
                pool.slots.wait()
                pool.placement.begin_long(rows)
                pool.slots.resize(pool.placement.left)
        return False

    def end_long(self) -> None:
        """Long steps have given their memory back."""
        for pool in self._each_pool():
            pool.passing.forget()
            pool.placement.end_long()
            there = pool.slots.resize(pool.placement.slots)
            if there < pool.placement.slots:  # somebody else was quicker
                pool.placement.resize(there, there)

    def lend(self, nbytes: int) -> None:
        """So many bytes of the device are somebody else's: experts give way, but the last few."""
        self._lent = max(0, nbytes)
        self._fit()

    def withhold(self, nbytes: int) -> None:
        """So many bytes of the device are not to be used, for as long as nothing else is said."""
        self._withheld = max(0, nbytes)
        self._fit()

    def shrink(self) -> bool:
        """An eighth of the slots goes back to the system, because the device is short of memory.  False: there are no
        more than steps need."""
        before = [pool.placement.slots for pool in self._each_pool()]
        self.withhold(self._withheld + self._slot_bytes() // 8)
        return [pool.placement.slots for pool in self._each_pool()] != before

    def _slot_bytes(self) -> int:
        return sum(pool.kind.slots * pool.kind.slot_bytes for pool in self._each_pool())

    def _fit(self) -> None:
        for pool in self._each_pool():
            kind, placement = pool.kind, pool.placement
            share = (self._lent + self._withheld) * kind.slots * kind.slot_bytes // self._slot_bytes()
            gone = -(-share // (kind.slot_bytes * kind.step)) * kind.step
            slots, long_slots = (
                max(min(kind.fewest, count), count - gone) for count in (kind.slots, kind.long_slots)
            )
            if slots != placement.slots:
                self._resize(pool, slots, long_slots)

    def _resize(self, pool: Pool, slots: int, long_slots: int) -> None:
        pool.passing.forget()
        pool.slots.wait()
        pool.placement.resize(slots, long_slots)
        if self._long_rows:
            pool.placement.begin_long(self._long_rows)
        there = pool.slots.resize(pool.placement.left if self._long_rows else slots)
        if not self._long_rows and there < slots:
            pool.placement.resize(there, min(long_slots, there))

    def _each_pool(self) -> list[Pool]:
        return list({id(pool.placement): pool for pool in self.pools}.values())

    def expert_bytes(self, block: int) -> int:
        """As they cross the link."""
        return sum(info.total_bytes for info in self.source.infos(block * self.source.experts))


class TieredLease(DividedLease, AbstractContextManager["TieredLease"]):
    """One layer.  Made once, asked for with every step; leaving it lets nothing go."""

    def __init__(self, store: TieredExperts, block: int, pool: Pool):
        self.store, self.block, self.pool = store, block, pool
        self.slots, self.places = pool.slots, store.places
        self._bytes = store.expert_bytes(block)
        self.name = store.source.blocks[block]
        # Of a step: the device has the head to compute yet
        self._last = block + 1 == len(store.source.blocks)
        self._admitted = False  # whether the placement has made room for the turn that is being decided
        blocks = store.source.blocks
        self.guesses = (
            store.recorder is None and block + 1 < len(blocks) and blocks[block + 1].startswith("blk.")
        )

    def __exit__(self, *_: object) -> None: ...

    @cached_property
    def at_hand(self) -> AtHand | None:
        host = self.store.host
        if not isinstance(host, MappedTier) or not host.pinned:
            return None
        return host.at_hand(self.pool.placement.address, self.block)

    def begin(self, rows: int) -> None:
        placement = self.pool.placement
        if placement.passing:
            self.pool.passing.forget()
        self.store.pacer.turn(self.block, rows)
        if placement.is_full(self.block, rows):
            self.store.settle()
        placement.begin_turn(self.block, rows)

    def make_room(self) -> None:
        self.pool.placement.make_room(self.block)
        self._admitted = True

    def taken(self, ids: NDArray[np.int64], computing: float) -> None:
        counters, admitted = self.store.counters, self._admitted
        self._admitted = False
        counters.link_bytes += self.pool.placement.decided(self.block, admitted) * self._bytes
        counters.host_seconds += computing
        self.store.note(self, ids)
        if self._last:
            self.store.settle()

    def turn(self, ids: NDArray[np.int64]) -> Iterator[ExpertTable]:
        placement, places = self.pool.placement, self.places
        self.begin(len(ids))
        turn = placement.turn(self.block, sorted(set(ids.ravel().tolist())), len(ids))
        self.store.counters.link_bytes += len(turn.bring) * self._bytes
        self.store.note(self, ids.copy())  # the next layer's will come to the same place
        places.fill(-1)
        places[turn.here] = placement.slots_of(self.block)[turn.here]
        places[list(turn.bring)] = list(turn.bring.values())
        if not (turn.bring or turn.host):
            return
        coming = dict(turn.bring)
        try:
            yield from self._as_it_comes(turn, coming)
        except BaseException:
            placement.lost(self.block, list(coming))
            raise

    def give_up(self) -> None:
        for placement in self.store.placements:
            placement.give_up()

    def waited(self, idle: float, host: float, link: float) -> None:
        counters = self.store.counters
        counters.idle_seconds += idle
        counters.host_stall_seconds += host
        counters.link_stall_seconds += link

    def ahead(self, ids: NDArray[np.int64]) -> None:
        self.store.ahead(self.block + 1, ids.tolist())

    def _own(self, experts: dict[int, HostExpert]) -> Iterator[ExpertTable]:
        """A table for the host."""
        store = self.store
        for number, expert in experts.items():
            store.table.put(number, expert)
        begin = time.perf_counter()
        try:
            yield store.table
        finally:
            store.counters.host_seconds += time.perf_counter() - begin
            for number in experts:
                store.table.remove(number)

    def _as_it_comes(self, turn: Turn, coming: dict[int, int]) -> Iterator[ExpertTable]:
        """What has come: first what is to be copied, then what is to be computed meanwhile."""
        store, slots = self.store, self.slots
        missing = sorted([*turn.bring, *turn.host])
        store.host.forget(self.pool.placement.spared(self.block, missing))
        with store.host.lend(self.block, missing, False, slots.wait) as arrivals:
            for some in self._timed(arrivals):
                own: dict[int, HostExpert] = {}
                for number, expert in some.items():
                    slot = coming.pop(number, None)
                    if slot is None:
                        own[number] = expert
                    else:
                        slots.bring(slot, expert)
                if own:
                    yield from self._own(own)

    def _timed(self, arrivals: Iterator[dict[int, HostExpert]]) -> Iterator[dict[int, HostExpert]]:
        counters = self.store.counters
        while True:
            begin = time.perf_counter()
            some = next(arrivals, None)
            counters.disk_stall_seconds += time.perf_counter() - begin
            if some is None:
                return
            yield some

    # ── many rows ─────────────────────────────────────────────────────────────────────────────────────────

    def waves(self, rows: NDArray[np.int64]) -> Iterator[Wave]:
        store, placement, passing = self.store, self.pool.placement, self.pool.passing
        store.settle()
        numbers = np.flatnonzero(rows).tolist()
        count = int(rows.sum()) // placement.used
        store.heat.use(self.name, numbers)
        if store.recorder is not None:
            store.recorder.record(self.block, count, numbers)
        missing = placement.long_turn(self.block, numbers, count)
        self.places[:] = placement.slots_of(self.block)
        store.counters.link_bytes += len(missing) * self._bytes
        store.host.forget(placement.spared(self.block, missing))
        most = 4 * len(numbers) >= 3 * store.source.experts
        yield from passing.waves(self.block, missing, self.places, most)
