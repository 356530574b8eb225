"""What weights that have to be read cost of the processors' time, and those that could be.

Layers run that read what they need from the model's own file, and the same layers with all at hand.  The time in
which one only waits for the disk does not count, it follows from the disk.  All else does: deciding, asking, cores
that go to those who read while others compute, helpers that fall asleep meanwhile and have to be woken.
"""

import random
import time
from contextlib import closing
from functools import partial
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Array, Backend
from penstock.backend.state import Step
from penstock.bench.imagined_layers import ImaginedLayers
from penstock.machine.measured_once import MeasuredOnce
from penstock.storage.cache import make_cache
from penstock.storage.counters import BlockCounters, Counters
from penstock.storage.dense import BUFFERS, LoadedDense, block_of
from penstock.storage.prefetch import Prefetch
from penstock.storage.reader import Reader
from penstock.storage.slots import Slots
from penstock.storage.source import ExpertSource
from penstock.storage.store import ResidentLease
from penstock.storage.streamed import IN_FLIGHT, StreamedExperts
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.layout import Role
from penstock.weights.summary import roles

ROWS: Final = 48  # so many that experts are computed in ascending order
ROUNDS: Final = 3  # of measuring
MOST_BYTES: Final = 256 << 20  # of experts
ENOUGH: Final = 2 * IN_FLIGHT  # slots, so that as many are on their way as can be while others are computed
SETTLING: Final = 4  # layers before: a virtual machine's host is slow with memory that is new
FEWEST, MOST = 4, 256  # layers for one number
PATIENCE: Final = 0.2  # seconds for them, once the fewest are made


class Handling(NamedTuple):
    """Seconds of the processors for what a layer has to read: the first of its experts and each further one, until it
    is asked for and altogether, or each where rows are many; all its other weights, where they have no place of their
    own; for a guess at what the next layer will have to read; for finding all of its experts in the cache; and each
    where rows are many and there is only the least room, so that few are on their way while few are computed."""

    asking: float = 5e-5
    first: float = 1e-4
    further: float = 1e-4
    many: float = 1e-4
    block: float = 1e-4
    guess: float = 0.0
    hits: float = 1e-4
    tight: float = 1e-4

    def many_with(self, slots: float, fewest: int) -> float:
        """Each of many, in a cache with room for so many, where `fewest` are the least."""
        enough = max(ENOUGH, fewest + 1)
        share = min(1.0, max(0.0, (slots - fewest) / (enough - fewest)))
        return self.tight + share * (self.many - self.tight)


def handling(checkpoint: Checkpoint, backend: Backend, notes: MeasuredOnce) -> Handling:
    """As noted for layers of this kind, or measured now."""
    source, built = ExpertSource(checkpoint), list[ImaginedLayers]()
    kinds = " ".join(f"{info.kind.name} {info.shape}" for info in source.infos(0))
    pieces = len(source.bundle(0).stretches)
    item = f"missing {kinds}, {pieces} pieces, {len(checkpoint.layers)} layers"

    def measure() -> list[float]:
        if not built:
            built.append(ImaginedLayers(checkpoint, checkpoint.config.layer_count - 1, backend))
        return list(measure_handling(built[0], source))

    return Handling(*notes.numbers(item, len(Handling._fields), measure, rounds=ROUNDS))


def measure_handling(layers: ImaginedLayers, source: ExpertSource) -> Handling:
    used, size = layers.config.experts_used, max(source.slot_bytes)
    absent = source.experts // (
        2 if len(source.blocks) == 1 else 1
    )  # that a block has, whatever it chose before
    many = max(used, min(ENOUGH, MOST_BYTES // size, absent))
    with closing(Reader()) as reader:

        def seconds(rows: int, count: int, missing: int) -> _Seconds:
            return _Turns(layers, source, reader, rows, count, missing).seconds()

        whole = _Turns(layers, source, reader, 1, used, 0, at_hand=True).seconds()
        here = seconds(1, used, 0)
        one, several = (seconds(1, used, missing) for missing in (1, used))
        dense = _streamed_blocks(source.checkpoint, layers.backend, reader)
        block = _Turns(layers, source, reader, 1, used, 0, dense).seconds().layer - here.layer
        all_missing, all_here = (seconds(ROWS, many, missing).layer for missing in (many, 0))
        least = _Turns(layers, source, reader, ROWS, many, many, slots=min(many, 2 * used)).seconds().layer
    found = (
        (several.asking - here.asking) / used,
        one.layer - here.layer,
        (several.layer - one.layer) / max(1, used - 1),
        (all_missing - all_here) / many,
        block,
        here.guess,
        here.layer - here.guess - whole.layer,
        (least - all_here) / many,
    )
    return Handling(*(max(0.0, seconds) for seconds in found))


def _streamed_blocks(checkpoint: Checkpoint, backend: Backend, reader: Reader) -> LoadedDense:
    """Some blocks whose weights take turns in two buffers."""
    dense = LoadedDense(checkpoint, backend, reader, checkpoint.blocks[: BUFFERS + 1])
    for name, role in roles(checkpoint).items():
        matrix = len(checkpoint.index[name].shape) > 1 and role not in (Role.ROUTED, Role.HASH_TABLE)
        if matrix and block_of(name) in dense.order:
            dense.weight(name)
    dense.load()
    return dense


class _Seconds(NamedTuple):
    """Of a layer, of it until its experts are asked for, and of a guess."""

    layer: float
    asking: float
    guess: float


class _Turns:
    """Layers in turn, each of which has to read something."""

    def __init__(
        self,
        layers: ImaginedLayers,
        source: ExpertSource,
        reader: Reader,
        rows: int,
        count: int,
        missing: int,
        dense: LoadedDense | None = None,
        at_hand: bool = False,
        slots: int | None = None,
    ):
        """Rows that choose `count` experts, of which so many are missing: all, or some, or none.  at_hand: no experts
        ever come or go, and nobody has to look for them.  slots: room for so many; else for all."""
        self.layers, self.source, self.rows, self.count, self.missing = layers, source, rows, count, missing
        self.dense = dense
        self._at_hand = ResidentLease(layers.table(layers.sets[0])) if at_hand else None
        self._blocks = range(min(2, len(source.blocks)) if missing == count else 1)
        held = (slots or (count if missing == count else count + missing)) * max(source.slot_bytes)
        self._counters, room = Counters([BlockCounters() for _ in source.blocks]), Slots(held)
        self.store = StreamedExperts(
            source,
            layers.backend,
            reader,
            make_cache("lru", held, source.slot_bytes, source.experts),
            room,
            Prefetch(source, reader, room, 0, self._counters),
            self._counters,
        )
        self._chosen: list[int] = []
        self.turn = 0
        self._layer: list[float] = []
        self._asking: list[float] = []
        self._guess: list[float] = []

    def seconds(self) -> _Seconds:
        """Not counting those in which a layer only waits."""
        for layer in self.layers.model.layers:
            layer.mixture = partial(self._mixture, layer)
            layer.forward = partial(self._timed, layer)
        step = Step.of([(self.layers.slot, 0, [0] * self.rows, 1)])
        while self.turn < SETTLING:
            self._run(step)
        found = self._layer, self._asking, self._guess
        for numbers in found:
            numbers.clear()
        end = time.perf_counter() + PATIENCE
        while len(self._layer) < FEWEST or (len(self._layer) < MOST and time.perf_counter() < end):
            self._run(step)
        return _Seconds(*(fmean(numbers or [0.0]) for numbers in found))

    def _run(self, step: Step) -> None:
        self.layers.model.forward(step)
        self.layers.pool.discard(self.layers.slot)

    def _timed(self, layer: Any, *args: Any) -> None:
        self._block = self._blocks[self.turn % len(self._blocks)]
        self._chosen = self._choose()
        dense, waited, begin = self.dense, self._waited(), time.perf_counter()
        name = "" if dense is None else dense.order[self.turn % len(dense.order)]
        if dense is not None:
            dense.enter(name)
        type(layer).forward(layer, *args)
        if dense is not None:
            dense.leave(name)
        self._layer.append(time.perf_counter() - begin - (self._waited() - waited))
        self.turn += 1

    def _waited(self) -> float:
        experts = sum(block.stall_seconds for block in self._counters.blocks)
        return experts + (0.0 if self.dense is None else self.dense.stall_seconds)

    def _choose(self) -> list[int]:
        """As many as are to be missing, and others from before."""
        if self._at_hand is not None:
            return list(range(self.count))
        first, cache = self._block * self.source.experts, self.store.cache
        kept = self._chosen[self.missing :] if self.missing < self.count else []
        absent = [number for number in range(self.source.experts) if first + number not in cache]
        return kept + random.sample(absent, self.count - len(kept))

    def _mixture(self, layer: Any, x: Array, batch: Any) -> Array:
        ids, weights = layer.router.run(x, batch)
        block = self.source.blocks[self._block]
        routed: NDArray[Any] = self.layers.backend.host(ids)  # [rows, used]
        routed[...] = np.resize(np.asarray(self._chosen, routed.dtype), routed.shape)

        if self._at_hand is not None:
            found: Array = layer.experts.run(x, ids, weights, self._at_hand)
            return found

        def guess() -> None:
            asked = time.perf_counter()
            self.store.guess(block, layer.router.guess(x, batch))
            self._asking.append(asked - begin)
            self._guess.append(time.perf_counter() - asked)

        begin = time.perf_counter()
        with self.store.acquire(block, ids, guess if self.rows == 1 else None) as lease:
            result: Array = layer.experts.run(x, ids, weights, lease)
        return result
