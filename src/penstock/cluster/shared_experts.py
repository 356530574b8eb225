"""A store of experts some of which other machines compute, while this one computes its own."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from types import TracebackType
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Array, Elsewhere, ExpertLease, ExpertTable
from penstock.backend.device import HostBackend
from penstock.cluster.helpers import Answer, Helper
from penstock.cluster.share import FEW, NEWER
from penstock.errors import ClusterError
from penstock.storage.heat import ExpertMap
from penstock.storage.store import Lease, TableStore

STALLED: Final = (
    300.0  # seconds that an expert worker may take for a layer; one that is silent is lost before
)


class SharedExperts(TableStore):
    """`own` has all experts.  What is asked of `helpers` and does not come is computed here after all, so that they
    can be lost at any moment and no answer changes."""

    def __init__(
        self, own: TableStore, backend: HostBackend, experts: int, helpers: Callable[[], Sequence[Helper]]
    ):
        self.own, self.backend, self.experts, self._helpers = own, backend, experts, helpers
        self._usual = (0, 0.0)  # rows and seconds of the latest layers that were no trials

    def acquire(self, block: str, ids: Array, following: Callable[[], None] | None = None) -> Lease:
        helpers = self._helpers()
        if not helpers:
            return self.own.acquire(block, ids, following)
        numbers: NDArray[np.int64] = self.backend.host(ids)
        rows = len(numbers)
        trial = next((helper for helper in helpers if helper.share.verdict(rows).is_due()), None)
        owners = self.owners(helpers, rows, trial)
        if owners.anybody:
            ids = self.backend.device(numbers[owners.by_expert[numbers] < 0].reshape(1, -1))
        begin = time.perf_counter()

        def done() -> None:
            self._learn(rows, time.perf_counter() - begin, trial)

        return SharedLease(self, block, owners, self.own.acquire(block, ids, following), done)

    def owners(self, helpers: Sequence[Helper], rows: int, trial: Helper | None = None) -> "Owners":
        """Who computes which expert in a step of so many rows.  trial: who does so the other way round than usual"""
        by_expert = np.full(self.experts, -1, np.int64)
        for number, helper in enumerate(helpers):
            taken = helper.taken(rows, helper is trial)
            by_expert[taken.start : taken.stop] = number
        return Owners(helpers, by_expert)

    def _learn(self, rows: int, seconds: float, trial: Helper | None) -> None:
        """A layer is done."""
        before, usual = self._usual
        if trial is None:
            self._usual = rows, usual + NEWER * (seconds - usual) if before == rows else seconds
        elif before == rows:
            verdict = trial.share.verdict(rows)
            if verdict.tried(usual, seconds):
                what, pays = (
                    ("decoding" if rows <= FEW else "prompts"),
                    "pays" if verdict.pays else "does not pay",
                )
                logging.getLogger(__name__).info(
                    "worker %s: its part in %s %s", trial.member.name, what, pays
                )

    @property
    def guessing(self) -> bool:
        return self.own.guessing

    def expect(self, block: str, ids: NDArray[np.int64]) -> None:
        self.own.expect(block, self._here(ids))

    def guess(self, block: str, ids: NDArray[np.int64]) -> None:
        self.own.guess(block, self._here(ids))

    def _here(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids[self.owners(self._helpers(), len(ids)).by_expert[ids] < 0]

    def map(self) -> ExpertMap | None:
        return self.own.map()


class Owners(NamedTuple):
    helpers: Sequence[Helper]
    by_expert: NDArray[np.int64]  # number of the helper; below zero: this machine

    @property
    def anybody(self) -> bool:
        """Whether not all of it is this machine's."""
        return bool((self.by_expert >= 0).any())


class Part(NamedTuple):
    """What one helper was asked for."""

    helper: Helper
    pairs: NDArray[np.int64]  # row · slots + slot, ascending
    answer: "Future[Answer]"


class SharedLease(Lease, Elsewhere):
    """This machine's own experts as they come; the others are `elsewhere`.  `done` is called at the end."""

    def __init__(
        self, store: SharedExperts, block: str, owners: Owners, own: Lease, done: Callable[[], None]
    ):
        self._store, self._block, self._owners, self._own, self._done = store, block, owners, own, done
        self.elsewhere: Elsewhere | None = self if owners.anybody else None
        self._parts: list[Part] = []

    @property
    def resident(self) -> bool:  # type: ignore[override]
        return self._own.resident

    @property
    def requested(self) -> bool:  # type: ignore[override]
        return self._own.requested

    @property
    def last(self) -> bool:  # type: ignore[override]
        return self._own.last

    def as_they_come(self) -> Iterator[ExpertTable]:
        return self._own.as_they_come()

    def in_order(self) -> Iterator[ExpertTable]:
        return self._own.in_order()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._own.__exit__(kind, error, where)
        if error is None:
            self._done()

    def begin(self, x: Array, ids: Array, weights: Array, terms: Array) -> Array:
        host = self._store.backend.host
        rows, numbers, scales = host(x), host(ids), host(weights)
        self._ids, self._terms = numbers, host(terms)
        owner = self._owners.by_expert[numbers]  # [rows, slots]
        for number, helper in enumerate(self._owners.helpers):
            mine = owner == number
            some = mine.any(axis=1)
            if some.any():
                asked = np.where(mine, numbers, self._store.experts)[some]
                answer = helper.ask(self._block, rows[some], asked, scales[some])
                self._parts.append(Part(helper, np.flatnonzero(mine.reshape(-1)), answer))
        self._began = time.perf_counter()
        return self._store.backend.device(np.where(owner < 0, numbers, self._store.experts))

    def finish(self) -> Iterator[tuple[Array, ExpertLease]]:
        for part in self._parts:
            begin = time.perf_counter()
            try:
                answer = part.answer.result(STALLED)
                if answer.terms.shape != (len(part.pairs), self._terms.shape[1]):
                    raise ClusterError(f"terms {answer.terms.shape} for {len(part.pairs)} experts")
            except (ClusterError, Late):
                yield from self._do_here(part.pairs)
                continue
            self._terms[part.pairs] = answer.terms
            waited, spare = time.perf_counter() - begin, max(0.0, begin - answer.when)
            part.helper.pairs += len(part.pairs)
            part.helper.waited_seconds += waited
            part.helper.share.learn(len(self._ids), begin - self._began, waited, spare)

    def _do_here(self, pairs: NDArray[np.int64]) -> Iterator[tuple[Array, ExpertLease]]:
        """What a helper was asked for and did not do."""
        left = np.full(self._ids.size, self._store.experts, np.int64)
        left[pairs] = self._ids.reshape(-1)[pairs]
        on = self._store.backend.device
        with self._store.own.acquire(self._block, on(left[pairs].reshape(1, -1))) as lease:
            yield on(left.reshape(self._ids.shape)), lease
