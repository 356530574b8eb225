"""The host's memory as a tier: experts as its processors see them, whether all are there or some come from disk."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

import numpy as np

from penstock.backend.base import AtHand, Bytes, DeviceExpert, HostExpert
from penstock.backend.device import HostBackend
from penstock.storage.cache import Cache
from penstock.storage.policies import Key
from penstock.storage.source import ExpertSource
from penstock.storage.store import ready_expert
from penstock.storage.streamed import StreamedExperts, StreamedLease
from penstock.weights.tensor import Weight

NEAR: Final = 1 << 20  # bytes between two tensors that are pinned together

Arrivals = Iterator[dict[int, HostExpert]]  # by number


def on_host(expert: DeviceExpert) -> HostExpert:
    assert isinstance(expert, HostExpert)
    return expert


class HostTier(ABC):
    """Gives experts of a block as they come."""

    source: ExpertSource
    cache: Cache | None  # None: it has all of them, for ever

    @abstractmethod
    def lend(
        self, block: int, numbers: Sequence[int], many: bool, hold: Callable[[], None]
    ) -> AbstractContextManager[Arrivals]:
        """many: in ascending order, each good until the next is asked for; else all stay until the end
        hold: called before the memory of what was given is used for something else"""

    @abstractmethod
    def sample(self, keys: Sequence[Key]) -> AbstractContextManager[list[HostExpert]]:
        """Some experts to measure with; nobody remembers that they were asked for."""

    def forget(self, keys: Sequence[Key]) -> None:  # noqa: B027 - only where there is not room for all
        """These need not be held any more."""


class MappedTier(HostTier):
    """The mapped file: all experts, where they are."""

    cache = None

    def __init__(self, source: ExpertSource, backend: HostBackend):
        self.source, self._backend = source, backend
        self._experts: dict[Key, HostExpert] = {}  # those that were used
        self.pinned = False  # so that a device finds them by itself

    def expert(self, key: Key) -> HostExpert:
        found = self._experts.get(key)
        if found is None:
            weights = [Weight(info) for info in self.source.infos(key)]
            found = self._experts[key] = on_host(ready_expert(self._backend, weights))
        return found

    def lend(
        self, block: int, numbers: Sequence[int], many: bool, hold: Callable[[], None]
    ) -> AbstractContextManager[Arrivals]:
        del many, hold  # nothing ever goes
        base = block * self.source.experts
        return nullcontext(iter(({number: self.expert(base + number) for number in numbers},)))

    def at_hand(self, placement: int, block: int) -> AtHand:
        """A block whose slots are described at `placement`."""
        count = self.source.experts
        experts = [self.expert(block * count + number) for number in range(count)]
        table = self._backend.expert_table(count)
        for number, expert in enumerate(experts):
            table.put(number, expert)
        return AtHand(placement, block, table, np.array([expert.parts for expert in experts], np.uint64))

    def describe(self) -> None:
        """All experts, so that no step has to do it."""
        for key in range(len(self.source.blocks) * self.source.experts):
            self.expert(key)

    def sample(self, keys: Sequence[Key]) -> AbstractContextManager[list[HostExpert]]:
        return nullcontext([self.expert(key) for key in keys])

    def extents(self) -> list[Bytes]:
        """The stretches of the files that hold experts."""
        infos = [
            part
            for key in range(len(self.source.blocks) * self.source.experts)
            for info in self.source.infos(key)
            for part in (info, info.scale)
            if part is not None
        ]
        infos.sort(key=lambda info: (str(info.file.path), info.offset))
        found: list[tuple[Bytes, int, int]] = []
        for info in infos:
            if found and found[-1][0] is info.file.bytes and info.offset - found[-1][2] < NEAR:
                found[-1] = (found[-1][0], found[-1][1], info.end)
            else:
                found.append((info.file.bytes, info.offset, info.end))
        return [memory[start:end] for memory, start, end in found]


class StreamedTier(HostTier):
    """As much as a budget holds; what is missing is read from disk."""

    def __init__(self, store: StreamedExperts):
        self.store, self.source, self.cache = store, store.source, store.cache

    @contextmanager
    def lend(
        self, block: int, numbers: Sequence[int], many: bool, hold: Callable[[], None]
    ) -> Iterator[Arrivals]:
        with StreamedLease(self.store, block, list(numbers), None) as lease:
            yield self._arrivals(lease, many, hold)

    @contextmanager
    def sample(self, keys: Sequence[Key]) -> Iterator[list[HostExpert]]:
        store, experts = self.store, list[HostExpert]()
        transfers = [store.read(key, urgent=True) for key in keys]
        try:
            for key, transfer in zip(keys, transfers, strict=True):
                store.reader.wait(transfer.job)
                weights = self.source.weights(key, transfer.slot.memory)
                experts.append(on_host(ready_expert(store.backend, weights)))
            yield experts
        finally:
            for transfer in transfers:
                store.reader.drop(transfer.job)
                store.memory.slots.give(transfer.slot)

    def _arrivals(self, lease: StreamedLease, many: bool, hold: Callable[[], None]) -> Arrivals:
        entries, experts = self.store.memory.entries, self.source.experts
        for _ in lease.in_order() if many else lease.as_they_come():
            if lease.handed:
                yield {key % experts: on_host(entries[key].expert) for key in lease.handed}
            if not lease.requested:
                hold()

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if key in self.store.cache:
                self.store.cache.drop(key)
                self.store.memory.release(key)
