"""Layers of a model's shape and types with random weights in memory: what kernels are timed on.

There are as many copies of a layer as the processor's caches do not hold, or as the model has: small models live in
the caches, large ones never do.  The engine's own code runs them.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Array, Backend, DeviceExpert, DeviceWeight, ExpertTable
from penstock.backend.device import HostBackend
from penstock.backend.state import DTYPES, Step
from penstock.engine.sampler import Sampler
from penstock.engine.sampling import Sampling
from penstock.machine.cpu import cache_bytes
from penstock.machine.memory import read_memory
from penstock.machine.pages import reserve
from penstock.model import architecture
from penstock.storage.dense import HEAD, DenseWeights
from penstock.storage.source import PARTS
from penstock.storage.store import ExpertStore, Lease, MappedExperts, ResidentLease, ready_expert
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.imagined import imagine
from penstock.weights.layout import TensorPlan
from penstock.weights.random_blocks import random_blocks
from penstock.weights.tensor import Weight
from penstock.weights.types import F32, WeightType

VOCABULARY: Final = 16384  # tokens of a head, at most; the rest follows by size
PIECE: Final = 1 << 21  # bytes of random weights of a type; then they repeat
CONTEXT: Final = 1 << 15
MOST_BYTES: Final = 512 << 20  # of the copies of a layer
MOST_EXPERTS: Final = 768 << 20  # bytes of experts, which caches hold even less of: a run has thousands
FEWEST, MOST = 2, 256  # calls for one number
PATIENCE: Final = 0.1  # seconds for one number, once the fewest calls are made


class Timing(NamedTuple):
    """Seconds of a layer without experts, of a step besides its layers, and of a token drawn from a row of logits."""

    layer: float
    step: float
    head: float


class ImaginedLayers:
    """Copies of layer `number` of a model, ready to run."""

    def __init__(self, checkpoint: Checkpoint, number: int, backend: Backend):
        assert isinstance(backend, HostBackend)
        self.backend = backend
        one = imagined_like(checkpoint, number, 1).index.items()
        dense = sum(info.nbytes for name, info in one if name.startswith("blk.") and "_exps." not in name)
        self._enough = min(MOST_BYTES, read_memory().room // 4, 2 * cache_bytes() or MOST_BYTES)
        self.copies = max(1, min(checkpoint.config.layer_count, -(-self._enough // dense)))
        self.checkpoint = imagined_like(checkpoint, number, self.copies)
        self.config = self.checkpoint.config
        described, self._weights = architecture(self.config), _RandomWeights()
        layout = described.state_layout(self.checkpoint, kv_dtype="f16", context=CONTEXT, max_rewind=0)
        self.pool = backend.states(layout)
        self.slot = self._filled_slot()
        self.model: Any = described.build(
            self.checkpoint,
            backend,
            self.pool,
            _NoExperts(),
            _InMemory(self.checkpoint, backend, self._weights),
        )
        self._all_experts = checkpoint.config.layer_count * checkpoint.config.experts

    def _filled_slot(self) -> int:
        """A sequence that has read all that its context holds."""
        slot, rng = self.pool.allocate(), np.random.default_rng(0)
        for number, series in enumerate(self.pool.layout.series):
            rows = self.pool.layout.capacity(series)
            values = rng.standard_normal((min(rows, 512), series.width), np.float32)
            for first in range(0, rows, len(values)):
                part = values[: rows - first].astype(DTYPES[series.dtype])
                self.pool.write(slot, number, first, part)
        return slot

    @cached_property
    def sets(self) -> list[list[DeviceExpert]]:
        """Experts [sets][experts of a token], no two of which share memory."""
        used = self.config.experts_used
        each = sum(self.checkpoint.expert("blk.0", 0, part).total_bytes for part in PARTS)
        enough = min(MOST_EXPERTS, read_memory().room // 4, 3 * cache_bytes() or MOST_EXPERTS)
        count = max(2, min(enough // (used * each), self._all_experts // used))
        return [[self._expert() for _ in range(used)] for _ in range(count)]

    def _expert(self) -> DeviceExpert:
        weights = []
        for part in PARTS:
            info = self.checkpoint.expert("blk.0", 0, part)
            weights.append(Weight(info, *self._weights.of(info)))
        return ready_expert(self.backend, weights)

    # ── timing ────────────────────────────────────────────────────────────────────────────────────────────

    def rest(self, rows: int, position: int) -> Timing:
        """A step of so many rows at this position, all experts left out."""
        layers: list[float] = []
        steps: list[float] = []
        heads: list[float] = []
        sampler = Sampler(Sampling(), (), self.config.vocab_size, self.backend.sampling)
        for layer in self.model.layers:
            layer.mixture = lambda x, batch, router=layer.router: (router.run(x, batch), x)[1]
            layer.forward = timed(type(layer).forward.__get__(layer), layers)

        def run() -> None:
            before, begin = sum(layers), time.perf_counter()
            step = Step.of([(self.slot, position, [0] * rows, 1)])
            hidden = self.model.forward(step)
            self.pool.discard(self.slot)
            steps.append(time.perf_counter() - begin - (sum(layers) - before))
            begin = time.perf_counter()
            sampler.sample(self.model.logits(hidden, step)[-1])
            heads.append(time.perf_counter() - begin)

        repeat([run], fewest=1 if self.copies > 1 else FEWEST)  # each call times all copies
        return Timing(fmean(layers[self.copies :]), fmean(steps[1:]), fmean(heads[1:]))

    def experts(self, rows: int) -> tuple[float, float]:
        """Seconds of the shared expert, and of one routed expert, if all rows choose the same ones."""
        x, ids, weights = self._routed(rows)
        alone = [self._call(number, x, ids, weights, self.table(())) for number in range(self.copies)]
        together = [
            self._call(number, x, ids, weights, self.table(experts))
            for number, experts in enumerate(self.sets)
        ]
        shared = repeat(alone)
        return shared, max(0.0, repeat(together) - shared) / self.config.experts_used

    def mapped(self) -> float:
        """Seconds that handing over experts takes, where all are at hand."""
        _, ids, _ = self._routed(1)
        store = MappedExperts(self.checkpoint, self.backend)
        return repeat([lambda: store.acquire("blk.0", ids)])

    def described(self) -> float:
        """Seconds that an expert takes when it is used for the first time."""
        info = [self.checkpoint.expert("blk.0", 0, part) for part in PARTS]
        weights = [Weight(each, *self._weights.of(each)) for each in info]
        return repeat([lambda: ready_expert(self.backend, weights)])

    def _routed(self, rows: int) -> tuple[Array, Array, Array]:
        """What reaches the experts, such that every row chooses the first ones."""
        step = Step.of([(self.slot, 0, [0] * rows, 1)])
        batch = self.model.ops.begin(step, range(self.copies))
        streams = self.model.ops.streams(self.model.embedding.run(batch), self.config.streams)
        layer = self.model.layers[0]
        x, _ = layer.attention_hyper.enter(streams)
        ids, weights = layer.router.run(x, batch)
        self.backend.host(ids)[...] = np.arange(self.config.experts_used)
        return x, ids, weights

    def table(self, experts: Sequence[DeviceExpert]) -> ExpertTable:
        table = self.backend.expert_table(self.config.experts)
        for number, expert in enumerate(experts):
            table.put(number, expert)
        return table

    def _call(
        self, number: int, x: Array, ids: Array, weights: Array, table: ExpertTable
    ) -> Callable[[], object]:
        op, lease = self.model.layers[number % self.copies].experts, ResidentLease(table)
        return lambda: op.run(x, ids, weights, lease)


def imagined_like(checkpoint: Checkpoint, number: int, copies: int) -> Checkpoint:
    """A model of nothing but copies of one layer, with a small vocabulary."""
    config = checkpoint.config
    layer = replace(config.layers[number], hashed=False)
    small = replace(
        config,
        layers=(layer,) * copies,
        vocab_size=min(VOCABULARY, config.vocab_size),
        context_length=CONTEXT,
    )

    def type_of(plan: TensorPlan) -> WeightType:
        block, _, leaf = (
            plan.name.partition(".")[2].partition(".") if plan.name.startswith("blk.") else ("", "", "")
        )
        if "_exps." in leaf:
            return checkpoint.expert(f"blk.{number}", 0, leaf.split("_")[1]).kind
        found = checkpoint.index.get(f"blk.{number}.{leaf}" if block else plan.name)
        return F32 if found is None else found.kind  # a hashed layer has no bias

    return imagine(small, type_of)


def repeat(calls: Sequence[Callable[[], object]], fewest: int = FEWEST) -> float:
    """Seconds of one of these calls, which are made in turn until it is known well enough."""
    found: list[float] = []
    calls[0]()  # brings threads, pages and working memory
    begin = time.perf_counter()
    while len(found) < fewest or (len(found) < MOST and time.perf_counter() < begin + PATIENCE):
        timed(calls[len(found) % len(calls)], found)()
    return fmean(found)  # as a run adds them up, with all that comes between


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        begin = time.perf_counter()
        result = function(*args)
        seconds.append(time.perf_counter() - begin)
        return result

    return timed


class _RandomWeights:
    """Memory with weights that are ordinary numbers."""

    def __init__(self) -> None:
        self._pieces: dict[WeightType, NDArray[np.uint8]] = {}

    def of(self, info: Any) -> tuple[NDArray[np.uint8], NDArray[np.uint8] | None]:
        scale = None if info.scale is None else np.full(info.scale.nbytes, 120, np.uint8)  # 2⁻⁷
        memory, piece = np.frombuffer(reserve(info.nbytes, large=True), np.uint8), self._piece(info.kind)
        for first in range(0, info.nbytes, len(piece)):
            part = memory[first : first + len(piece)]
            part[...] = piece[: len(part)]
        return memory, scale

    def _piece(self, kind: WeightType) -> NDArray[np.uint8]:
        found = self._pieces.get(kind)
        if found is None:
            blocks = PIECE // kind.block_bytes
            try:
                found = random_blocks(kind, 0.02)(np.random.default_rng(0), blocks)
            except KeyError:  # a type that is decoded before it is multiplied, which takes any number as long
                found = np.zeros(blocks * kind.block_bytes, np.uint8)
            self._pieces[kind] = found
        return found


class _InMemory(DenseWeights):
    def __init__(self, checkpoint: Checkpoint, backend: Backend, weights: _RandomWeights):
        super().__init__(checkpoint, backend)
        self._random = weights

    def weight(self, name: str) -> DeviceWeight:
        info = self.checkpoint.index[name]
        weight = self.backend.weight(info)
        weight.place(*self._random.of(info))
        if name == HEAD:
            self._head = weight
        return weight


class _NoExperts(ExpertStore):
    def acquire(self, block: str, ids: Array, following: Callable[[], None] | None = None) -> Lease:
        raise NotImplementedError
