"""Experts that come from the disk when they are needed and stay while they are worth their memory.

A layer's misses are all asked for at once.  While they are on their way, what is in memory already is computed, the
shared expert included.  With few rows experts are computed in the order in which they arrive: each one's term is
kept, and the terms are added up in order of id at the end.  With many rows terms would take too much memory; experts
are read and computed in ascending order there, the next ones being read meanwhile, each one once for all rows.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ReadError
from penstock.experts.ahead import Ahead, Coming
from penstock.experts.cache import Cache, Decision
from penstock.experts.counters import BlockCounters, Counters
from penstock.experts.heat import ExpertMap, Heat
from penstock.experts.reader import Reader
from penstock.experts.rounding import rounded_sum
from penstock.experts.slots import Slot, Slots
from penstock.experts.source import ExpertSource
from penstock.experts.store import ExpertStore
from penstock.kernels.ops import Expert, Ops

FEW: Final = 16  # rows for which terms are kept
IN_FLIGHT: Final = 12  # experts on their way while many rows wait for the next


class Recorder(Protocol):
    """Whoever wants to know what was asked for."""

    def record(self, block: int, rows: int, experts: Sequence[int]) -> None: ...


class Entry(NamedTuple):
    slot: Slot
    expert: Expert


class StreamedExperts(ExpertStore):
    """See above.  Used by one thread at a time."""

    def __init__(
        self,
        source: ExpertSource,
        ops: Ops,
        reader: Reader,
        cache: Cache,
        slots: Slots,
        ahead: Ahead,
        counters: Counters,
        *,
        recorder: Recorder | None = None,
        simulate_low_precision: bool = False,
    ):
        self.source, self.ops, self.reader, self.cache, self.slots = source, ops, reader, cache, slots
        self.ahead, self.counters, self.recorder = ahead, counters, recorder
        self.simulate = simulate_low_precision
        self._entries: dict[int, Entry] = {}
        self._heat = Heat(source.blocks, source.experts)

    def run(
        self,
        block: str,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        limit: float,
        shared: Expert | None = None,
        shared_limit: float = 0.0,
        following: Callable[[], None] | None = None,
    ) -> Tensor:
        numbers: list[int] = sorted(set(ids.view(-1).tolist()))
        keys = [self.source.key(block, number) for number in numbers]
        self.counters.requests += 1
        self._heat.use(block, numbers)
        if self.recorder is not None and keys:
            self.recorder.record(self.source.number(block), ids.shape[0], numbers)
        number = self.source.number(block)
        layer = _Layer(self, self.counters.blocks[number], x, ids, weights, limit, shared, shared_limit)
        few = ids.shape[0] <= FEW and not self.simulate
        decisions = self.cache.request(keys)
        try:
            return layer.in_parts(decisions, following) if few else layer.in_order(decisions, keys)
        except BaseException:
            decisions.close()
            layer.abandon()
            raise
        finally:
            self.ahead.settle(number)

    def expect(self, block: str, ids: Tensor) -> None:
        """The block will be asked for these."""
        self.ahead.ask(self._absent(block, ids))

    def guess(self, block: str, ids: Tensor) -> None:
        """The block will perhaps be asked for these."""
        self.ahead.guess(self._absent(block, ids))

    @property
    def guessing(self) -> bool:
        return self.ahead.guessing

    def _absent(self, block: str, ids: Tensor) -> list[int]:
        keys = (self.source.key(block, number) for number in sorted(set(ids.view(-1).tolist())))
        return [key for key in keys if key not in self.cache]

    def map(self) -> ExpertMap:
        heat = self._heat.now()
        present = np.zeros(heat.shape, bool)
        present.reshape(-1)[list(self._entries)] = True  # the copy is made at once, whatever comes and goes
        return ExpertMap(self._heat.blocks, present, heat)

    # ── memory ────────────────────────────────────────────────────────────────────────────────────────────

    def resize(self, capacity: int) -> None:
        """The cache may hold so many bytes from now on."""
        room = self.slots.limit - self.cache.capacity
        for key in self.cache.resize(capacity):
            self.release(key)
        self.slots.resize(capacity + room)

    def release(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return  # evicted by the very request that failed to bring it
        self.slots.give(entry.slot)
        self.counters.blocks[key // self.source.experts].evictions += 1

    def entry(self, key: int) -> Expert:
        return self._entries[key].expert

    def begin(self, key: int) -> Coming:
        """An expert that is not in memory is asked for, unless it is on its way already."""
        counters = self.counters.blocks[key // self.source.experts]
        counters.misses += 1
        counters.bytes_read += sum(stretch.length for stretch in self.source.bundle(key).stretches)
        found = self.ahead.claim(key)
        if found is None:
            slot = self.slots.take(self.source.size_of(key))
            found = Coming(
                self.reader.submit(list(self.source.bundle(key).pieces(self.reader, slot.address))), slot
            )
        return found

    def arrive(self, key: int, coming: Coming) -> Expert:
        """An expert's read has ended, well or not."""
        try:
            self.reader.wait(coming.job)
        except ReadError as error:
            self.counters.read_errors += 1
            raise ReadError(f"{self.source.name(key)}: {error}") from None
        self._entries[key] = Entry(coming.slot, self.source.expert(key, coming.slot.memory))
        return self._entries[key].expert

    def give_up(self, key: int, coming: Coming) -> None:
        self.reader.drop(coming.job)
        self.slots.give(coming.slot)
        self.cache.drop(key)


class _Layer:
    """One layer's turn."""

    def __init__(
        self,
        store: StreamedExperts,
        counters: BlockCounters,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        limit: float,
        shared: Expert | None,
        shared_limit: float,
    ):
        self.store, self.counters, self.ops = store, counters, store.ops
        self.x, self.ids, self.weights, self.limit = x, ids, weights, limit
        self.shared, self.shared_limit = shared, shared_limit
        self.here: dict[int, Expert] = {}  # in memory and not yet computed, by number
        self.coming: dict[int, Coming] = {}  # by key
        self.decided: Decision | None = None  # by the cache, and not yet carried out

    def each(self, decisions: Iterator[Decision]) -> Iterator[Decision]:
        for self.decided in decisions:
            yield self.decided

    def take(self) -> None:
        """Carries out what was decided last."""
        assert self.decided is not None
        store, (key, hit, evicted, _) = self.store, self.decided
        for gone in evicted:
            store.release(gone)
        if hit:
            self.counters.hits += 1
            self.here[key % store.source.experts] = store.entry(key)
        else:
            self.coming[key] = store.begin(key)
        self.decided = None

    def wait(self, key: int | None = None) -> None:
        """Until this expert is here, or any; those that have come meanwhile are here too then."""
        store = self.store
        keys = list(self.coming) if key is None else [key]
        begin = time.perf_counter()
        store.reader.wait_any([self.coming[each].job for each in keys])
        self.counters.stall_seconds += time.perf_counter() - begin
        for each in [each for each, coming in self.coming.items() if store.reader.poll(coming.job)]:
            expert = store.arrive(each, self.coming[each])
            del self.coming[each]
            self.here[each % store.source.experts] = expert

    @contextmanager
    def computing(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.counters.compute_seconds += time.perf_counter() - begin

    def abandon(self) -> None:
        """Nothing of this layer remains that is not whole."""
        if self.decided is not None and not self.decided.hit:
            for gone in self.decided.evicted:
                self.store.release(gone)
            self.store.cache.drop(self.decided.key)
        for key, coming in self.coming.items():
            self.store.give_up(key, coming)
        self.coming.clear()

    # ── few rows ──────────────────────────────────────────────────────────────────────────────────────────

    def in_parts(self, decisions: Iterator[Decision], following: Callable[[], None] | None) -> Tensor:
        rows, slots = self.ids.shape
        parts = torch.empty(rows * slots + rows, self.x.shape[1])
        for decision in self.each(decisions):
            while any(key in self.coming for key in decision.after):
                self.wait()
            if decision.after:  # their memory is wanted by others
                self._add_parts(parts, None)
            self.take()
        if following is not None:
            following()
        self._add_parts(parts, self.shared)
        while self.coming:
            self.wait()
            self._add_parts(parts, None)
        return self.ops.expert_sum(self.ids, self.weights, parts, self.shared is not None)

    def _add_parts(self, parts: Tensor, shared: Expert | None) -> None:
        if self.here or shared is not None:
            with self.computing():
                arguments = (self.here, self.limit, shared, self.shared_limit, parts)
                self.ops.expert_parts(self.x, self.ids, *arguments)
            self.here = {}

    # ── many rows ─────────────────────────────────────────────────────────────────────────────────────────

    def in_order(self, decisions: Iterator[Decision], keys: Sequence[int]) -> Tensor:
        out = torch.zeros_like(self.x)
        queue = list(reversed(keys))  # what has not been computed; the next one is last

        def compute_next() -> None:
            """The next expert, and those behind it that are here."""
            if queue[-1] in self.coming:
                self.wait(queue[-1])
            share: dict[int, Expert] = {}
            while queue and (number := queue[-1] % self.store.source.experts) in self.here:
                share[number] = self.here.pop(number)
                queue.pop()
            self._add(share, None if queue else self.shared, out)

        for decision in self.each(decisions):
            while any(key in queue for key in decision.after):
                compute_next()
            self.take()
            if len(self.coming) >= IN_FLIGHT:
                compute_next()
        while queue:
            compute_next()
        return out

    def _add(self, share: dict[int, Expert], shared: Expert | None, out: Tensor) -> None:
        arguments = (self.x, self.ids, self.weights, share, self.limit, shared, self.shared_limit, out)
        with self.computing():
            if self.store.simulate:
                rounded_sum(self.ops, *arguments)
            else:
                self.ops.experts(*arguments)
