"""The interface between a layer and its routed experts, and the simplest store behind it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import (
    Array,
    Backend,
    DeviceExpert,
    DividedLease,
    Elsewhere,
    ExpertLease,
    ExpertTable,
)
from penstock.backend.device import HostBackend
from penstock.storage.heat import ExpertMap, Heat
from penstock.storage.source import PARTS
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.tensor import Weight


class Lease(ABC):
    """What `TableStore.acquire` gives: see `ExpertLease`.  Leaving it lets the experts go."""

    resident = False
    requested = False
    last = False
    elsewhere: Elsewhere | None = None

    @abstractmethod
    def as_they_come(self) -> Iterator[ExpertTable]: ...

    @abstractmethod
    def in_order(self) -> Iterator[ExpertTable]: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(  # noqa: B027 - most have nothing to let go
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None: ...


class ExpertStore(ABC):
    """Where routed experts are, and how they come.  It never changes a result."""

    @abstractmethod
    def acquire(
        self, block: str, ids: Array, following: Callable[[], None] | None = None
    ) -> AbstractContextManager[ExpertLease | DividedLease]:
        """The experts that a layer needs.  block: "blk.7" or "mtp.0"; ids [rows, k] as the router gave them.
        `following` is called when all that is missing is on its way: the time to think of what comes next."""

    @property
    def guessing(self) -> bool:
        """Whether it is of any use to `guess`."""
        return False

    def expect(self, block: str, ids: NDArray[np.int64]) -> None:  # noqa: B027 - only where experts have to come
        """The block will be asked for these experts."""

    def guess(self, block: str, ids: NDArray[np.int64]) -> None:  # noqa: B027
        """The block will perhaps be asked for these experts."""

    def whole(self, block: str) -> ExpertTable | None:
        """All experts of a block, where they are always at hand; whoever runs some says so (`used`)."""
        del block
        return None

    def used(self, block: str, ids: NDArray[np.int64]) -> None:  # noqa: B027
        """The block has run these experts of the `whole`."""

    def map(self) -> ExpertMap | None:
        """Which experts are in memory and how much they are used, if the store knows.  Waits for nobody."""
        return None


class TableStore(ExpertStore):
    """One whose experts are computed in one place, from the tables of a lease."""

    @abstractmethod
    def acquire(self, block: str, ids: Array, following: Callable[[], None] | None = None) -> Lease: ...


class ResidentLease(Lease):
    """All experts of a layer, in one table."""

    resident = requested = last = True

    def __init__(self, table: ExpertTable):
        self.table = table

    def as_they_come(self) -> Iterator[ExpertTable]:
        yield self.table

    def in_order(self) -> Iterator[ExpertTable]:
        yield self.table


class MappedExperts(TableStore):
    """Experts straight from the mapped file; the operating system decides what stays in memory."""

    def __init__(self, checkpoint: Checkpoint, backend: HostBackend):
        self.checkpoint, self.backend = checkpoint, backend
        for file in checkpoint.files:
            file.expect_all()
        experts, blocks = checkpoint.config.experts, checkpoint.blocks
        self._tables = {block: backend.expert_table(experts) for block in blocks}
        self._leases = {block: ResidentLease(table) for block, table in self._tables.items()}
        self._described = {block: np.zeros(experts, bool) for block in blocks}  # are in the block's table
        self._whole: set[str] = set()  # blocks of which all are
        self.heat = Heat(blocks, experts)

    def acquire(self, block: str, ids: Array, following: Callable[[], None] | None = None) -> Lease:
        del following  # nothing is ever on its way here
        numbers = self.backend.host(ids)
        self._describe(block, numbers)
        self.heat.use(block, numbers)
        return self._leases[block]

    def whole(self, block: str) -> ExpertTable:
        if block not in self._whole:
            self._describe(block, np.arange(len(self._described[block])))
            self._whole.add(block)
        return self._tables[block]

    def used(self, block: str, ids: NDArray[np.int64]) -> None:
        self.heat.use(block, ids)

    def _describe(self, block: str, numbers: NDArray[np.int64]) -> None:
        described = self._described[block]
        if not described[numbers].all():
            for number in np.unique(numbers[~described[numbers]]).tolist():
                self._tables[block].put(number, self._expert(block, number))
                described[number] = True

    def _expert(self, block: str, number: int) -> DeviceExpert:
        weights = [Weight(self.checkpoint.expert(block, number, part)) for part in PARTS]
        return ready_expert(self.backend, weights)

    def map(self) -> ExpertMap:
        """All are present: which of them really are is known to the system alone."""
        heat = self.heat.now()
        return ExpertMap(self.heat.blocks, np.ones(heat.shape, bool), heat)


def ready_expert(backend: Backend, weights: list[Weight]) -> DeviceExpert:
    """An expert for the backend's ops, of gate, up and down where they lie."""
    ready = []
    for weight in weights:
        ready.append(backend.weight(weight.info))
        ready[-1].place(weight.raw, weight.scale)
    return backend.expert(*ready)
