"""The tiers of a plan, made."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.backend.base import Bytes
from penstock.backend.device import DeviceBackend
from penstock.storage.cache import make_cache
from penstock.storage.counters import BlockCounters, Counters
from penstock.storage.device import expert_infos
from penstock.storage.plan import Plan
from penstock.storage.policies import Key
from penstock.storage.prefetch import Prefetch
from penstock.storage.reader import Reader
from penstock.storage.slots import Slots
from penstock.storage.source import ExpertSource
from penstock.storage.streamed import Recorder, StreamedExperts
from penstock.storage.tiers.counters import TierCounters
from penstock.storage.tiers.division import Division, Times
from penstock.storage.tiers.experts import Pool, TieredExperts
from penstock.storage.tiers.host import HostTier, MappedTier, StreamedTier
from penstock.storage.tiers.pace import USUAL, note, note_routing, noted_routing
from penstock.storage.tiers.passing import Passing
from penstock.storage.tiers.placement import Placement, capacity_of
from penstock.storage.tiers.plan import memory_share
from penstock.storage.usage import Usage

PINNERS: Final = 8  # threads: the system looks up every page
MEASURED: Final = 32  # experts that the link and the processors are measured with


def open_tiers(
    source: ExpertSource,
    backend: DeviceBackend,
    plan: Plan,
    reader: Reader,
    *,
    policy: str,
    exact: bool,
    recorder: Recorder | None,
) -> "Tiers":
    tiers, config = plan.tiers, source.checkpoint.config
    assert tiers is not None
    host = _open_host(source, backend, plan, reader, policy)
    counters, used = TierCounters(), config.experts_used
    division = Division(Times(1.0, (1.0, 1.0, 1.0)), exact)  # until it is measured
    pools: dict[int, Pool] = {}
    for kind in tiers.kinds:
        infos = expert_infos(source.checkpoint, source.blocks[kind.blocks[0]])
        slots = backend.expert_slots(infos, kind.slots, used)
        placement = Placement(
            policy,
            kind.slots,
            division,
            counters,
            blocks=len(source.blocks),
            experts=source.experts,
            used=used,
            memory=host.cache,
            passing=kind.passing,
            long_slots=kind.long_slots,
            chunk=plan.chunk,
            step=kind.step,
        )
        layers = [block for block in kind.blocks if source.blocks[block].startswith("blk.")]
        pool = Pool(placement, slots, Passing(host, slots, placement, layers), kind)
        pools |= dict.fromkeys(kind.blocks, pool)
    table = backend.beside.expert_table(source.experts)
    ordered = [pools[block] for block in range(len(source.blocks))]
    store = TieredExperts(host, ordered, counters, table, division, recorder=recorder)
    return Tiers(store, backend, plan)


def _open_host(
    source: ExpertSource, backend: DeviceBackend, plan: Plan, reader: Reader, policy: str
) -> HostTier:
    tiers = plan.tiers
    assert tiers is not None
    if tiers.whole:
        return MappedTier(source, backend.beside)
    counters = Counters([BlockCounters() for _ in source.blocks])
    slots = Slots(tiers.held + tiers.ahead, backend.pin, backend.unpin)
    cache = make_cache(policy, tiers.held, source.slot_bytes, source.experts)
    prefetch = Prefetch(source, reader, slots, tiers.ahead, counters)
    return StreamedTier(StreamedExperts(source, backend.beside, reader, cache, slots, prefetch, counters))


class Tiers:
    """The tiers of a running model, and the device that they are for."""

    def __init__(self, experts: TieredExperts, backend: DeviceBackend, plan: Plan):
        self.experts, self._backend, self.plan = experts, backend, plan
        self._pinned: list[Bytes] = []
        self.pin_seconds = 0.0

    def begin(self, known: Usage | None) -> None:
        """The device has all other weights.  known: how often experts were used so far"""
        begin = time.perf_counter()
        self._pin()
        self.pin_seconds = time.perf_counter() - begin
        self.experts.division.learn(measure_division(self.experts, self._backend))
        source = self.experts.source
        if self.experts.recorder is not None:  # a replay begins with nothing
            return
        if known is not None and known.tells:
            self._preload(known.favourites())
        elif self.experts.host.cache is None:
            blocks = range(len(source.checkpoint.layers))
            self.experts.preload([b * source.experts + e for e in range(source.experts) for b in blocks])

    def _preload(self, favourites: Sequence[Key]) -> None:
        """The device begins with the most used experts, memory with those behind them."""
        store, host = self.experts, self.experts.host
        store.preload(favourites)
        if isinstance(host, StreamedTier):
            device = {key for placement in store.placements for key in placement.slot_of}
            host.forget(sorted(device))
            host.store.preload([key for key in favourites if key not in device])

    def _pin(self) -> None:
        """All of a mapped file; slots that are filled from disk are pinned one by one."""
        host = self.experts.host
        if isinstance(host, MappedTier):
            extents = host.extents()
            with ThreadPoolExecutor(PINNERS, "penstock-pin") as pool:
                pinned = pool.map(self._backend.pin, extents)
                host.describe()  # meanwhile
                self._pinned = [memory for memory, done in zip(extents, pinned, strict=True) if done]
            host.pinned = len(self._pinned) == len(extents) and self._backend.reaches_host

    def begin_step(self, rows: int) -> None:
        if self.experts.begin_step(rows):
            self._backend.end_long_steps()
            self.experts.end_long()

    def totals(self) -> dict[str, Any]:
        """Counters that only grow."""
        host, found = self.experts.host, self.experts.counters.totals()
        if isinstance(host, StreamedTier):
            read = host.store.reader.stats()
            found |= {"disk_bytes": read["bytes"], "read_seconds": read["active_ns"] / 1e9}
        return found

    def stats(self) -> dict[str, Any]:
        """As it is now."""
        store, times = self.experts, self.experts.division.times
        asked = max(1, store.counters.device_hits + store.counters.device_misses)
        found: dict[str, Any] = {
            "policy": store.placements[0].cache.policy.name,
            "slots": sum(each.slots for each in store.placements),
            "slots_used": sum(len(each.slot_of) for each in store.placements),
            "hit_rate": store.counters.device_hits / asked,
            "host_share": store.counters.on_host / max(1, store.counters.device_misses),
            "pinned_bytes": sum(each.size for each in self._pinned),
            "pin_seconds": self.pin_seconds,
            "link_seconds_per_expert": times.link,
            "host_seconds_per_expert": times.host[0],
            "disk_seconds_per_expert": times.disk,
        }
        if isinstance(store.host, StreamedTier):
            cache = store.host.store.cache
            found |= {"cached": len(cache), "cached_bytes": cache.used, "capacity_bytes": cache.capacity}
        return found

    def close(self) -> None:
        self._note()
        for pool in self.experts.pools:
            pool.slots.wait()
        for memory in self._pinned:
            self._backend.unpin(memory)
        self._pinned.clear()

    def _note(self) -> None:
        """What was found, for the next plan."""
        store, source = self.experts, self.experts.source
        pace = store.pacer.pace
        if pace is not None:
            note(self.plan, self._backend.description, pace, store.division.times)
        slots = sum(capacity_of(each.slots) for each in store.placements)
        device = slots / (source.experts * len(source.blocks))
        routing = store.pacer.routing(device, memory_share(self.plan, device))
        if routing is None:
            return
        model = source.checkpoint.fingerprint()
        before, whole = noted_routing(model) or USUAL, isinstance(store.host, MappedTier)
        if whole:
            routing = routing._replace(memory=before.memory)
        if not whole or store.recorder is not None:
            routing = routing._replace(guessed=before.guessed)  # nothing was brought ahead this time
        note_routing(model, routing)


def measure_division(store: TieredExperts, backend: DeviceBackend) -> Times:
    """What an expert takes over the link, on the host and from the disk, now that nobody uses any of them."""
    pool, source, cache = store.pools[0], store.source, store.host.cache
    count = min(MEASURED, pool.slots.count, source.experts)
    if cache is not None:
        count = min(count, cache.capacity // source.size_of(0))
    begin = time.perf_counter()
    with store.host.sample([number * source.experts // count for number in range(count)]) as experts:
        reading = time.perf_counter() - begin
        at_hand = isinstance(store.host, MappedTier) and store.host.pinned
        seconds = backend.expert_seconds(pool.slots, experts, at_hand)
    return Times.measured(seconds, reading / count if cache is not None else 0.0)
