"""How a step begins, is recorded and repeated, and the makers of its ops."""

from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Backend, DeviceWeight
from penstock.backend.cuda.backend import CudaBackend
from penstock.backend.cuda.deepseek_v4.attention import CudaAttention
from penstock.backend.cuda.deepseek_v4.batch import BUCKETS, Batch, StepMemory
from penstock.backend.cuda.deepseek_v4.dspark import (
    BlockKeys,
    CudaBlockAttention,
    CudaFeatures,
    CudaMarkovHead,
)
from penstock.backend.cuda.deepseek_v4.ends import CudaEmbedding, CudaHead, CudaJoin, Embedded
from penstock.backend.cuda.deepseek_v4.experts import CudaExperts, CudaRouter
from penstock.backend.cuda.deepseek_v4.hyper import CudaHyper, Pending, Streams
from penstock.backend.cuda.deepseek_v4.long_steps import LongBatch, LongStreams
from penstock.backend.cuda.deepseek_v4.sizes import STEP_ROWS, step_bytes
from penstock.backend.cuda.device import translated
from penstock.backend.cuda.launch import Recorded
from penstock.backend.cuda.states import CudaStates
from penstock.backend.state import StatePool, Step
from penstock.weights.checkpoint import Checkpoint

CUTS: Final = (2, 8)  # blocks before which a graph is cut: a short one is launched sooner than a long one

GraphKey = tuple[int, range, range | None, bool]  # rows, blocks, those of a part of the step, begun early

T = TypeVar("T")


class CudaOps(v4.DSparkOps):
    def __init__(self, backend: Backend, pool: StatePool):
        assert isinstance(backend, CudaBackend)
        assert isinstance(pool, CudaStates)
        self._backend, self._pool = backend, pool
        backend.activate()
        self._memory = StepMemory(pool, STEP_ROWS)
        self._memory.long.prepare(backend.long_steps)
        backend.note_long_memory(self._memory.long)
        self._streams: dict[int, Streams] = {}
        self._shape = (0, 0)  # of streams
        self._blocks = 0
        self._graphs: dict[GraphKey, Recorded] = {}
        # In which buffer the streams are in the end, and what is still to be added to them
        self._ends: dict[GraphKey, tuple[int, Pending]] = {}
        self._block_keys: BlockKeys | None = None  # of a DSpark module
        self._block = 0  # rows of its blocks

    @staticmethod
    def step_bytes(backend: Backend, checkpoint: Checkpoint, rows: int) -> int:
        del backend  # every card takes the same
        return step_bytes(checkpoint, rows)

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, step: Step, blocks: range, *, since: int | None = None) -> Batch:
        self._backend.activate()
        with translated("a step"):
            if step.rows > STEP_ROWS:
                return LongBatch(step, blocks, self._memory.long)
            if since is not None:
                assert self._block_keys is not None
                self._block_keys.show(int(step.positions[0]), step.rows, since)
            return self._memory.begin(step, blocks)

    def repeat(
        self,
        batch: Batch,
        work: Callable[[v4.Progress | None], T],
        progress: v4.Progress | None = None,
        blocks: range | None = None,
    ) -> T:
        if isinstance(batch, LongBatch):
            with translated("a step"):
                if blocks is None:
                    self._backend.count_step(False)
                long = work(progress)
                if isinstance(long, LongStreams):
                    long.settle()
            return long
        found = self._repeat(batch, work, blocks)
        if (
            progress is not None
        ):  # after it: what it raises may not end a recording, nor be called by a later one
            progress(1.0)
        return found

    def _repeat(self, batch: Batch, work: Callable[[v4.Progress | None], T], blocks: range | None) -> T:
        """Of a short step."""

        early = (
            batch.step.source is not None
        )  # the card is busy with the step before: no hurry to launch this one

        def whole() -> T:
            self._memory.turn(batch.rows)
            self._memory.cuts = not early
            return work(None)

        with translated("a step"):
            if batch.rows not in BUCKETS:
                return whole()
            key = (batch.rows, batch.blocks, blocks, early)
            graph = self._graphs.get(key)
            if graph is None:
                graph = self._graphs[key] = Recorded(whole)
            if blocks is None:
                self._backend.count_step(graph.recorded)
            replayed = graph.recorded
            found: T = graph.run()
            if isinstance(found, Streams):
                if replayed:
                    found.at, found.pending = self._ends[key]
                self._ends[key] = (found.at, found.pending)
        return found

    def streams(self, x: Embedded, count: int) -> Streams | LongStreams:
        if x.rows > STEP_ROWS:
            whole = self._memory.long.take("streams", x.rows, count, x.hidden)
            x.write(whole)
            return LongStreams(whole)
        streams = self._streams_of(x.rows, count, x.hidden)
        x.write(streams.begin())
        return streams

    def received(self, streams: NDArray[np.float32], batch: Batch) -> Callable[[], Streams | LongStreams]:
        found, (live, count, hidden) = torch.from_numpy(streams), streams.shape
        with translated("streams of another stage"):
            if isinstance(batch, LongBatch):
                whole = self._memory.long.take("streams", live, count, hidden)
                whole.copy_(found)
                return lambda: LongStreams(whole)
            place = self._streams_of(batch.rows, count, hidden)
            first = place.begin()
            first[:live].copy_(found)
            first[live:].copy_(first[live - 1].expand(batch.rows - live, count, hidden))

        def begun() -> Streams:
            place.begin()
            return place

        return begun

    def _streams_of(self, rows: int, count: int, hidden: int) -> Streams:
        if rows not in self._streams:
            self._streams[rows] = Streams(self._memory.workspace, "streams", rows, count, hidden)
        return self._streams[rows]

    # ── makers ────────────────────────────────────────────────────────────────────────────────────────────

    def embedding(self, weight: DeviceWeight) -> CudaEmbedding:
        return CudaEmbedding(weight, self._memory)

    def hyper(self, spec: v4.HyperSpec) -> CudaHyper:
        self._shape = (spec.streams, len(spec.norm))
        return CudaHyper(spec, self._memory)

    def attention(self, spec: v4.AttentionSpec, state: v4.AttentionState) -> CudaAttention:
        self._blocks += 1
        if spec.block:
            if self._block_keys is None:
                capacity = self._pool.places[state.window].capacity
                self._block_keys, self._block = BlockKeys(spec.window, spec.block, capacity), spec.block
            return CudaBlockAttention(spec, state, self._memory, self._block_keys)
        return CudaAttention(spec, state, self._memory, self._blocks in CUTS)

    def router(self, spec: v4.RouterSpec) -> CudaRouter:
        return CudaRouter(spec, self._memory)

    def experts(self, spec: v4.ExpertsSpec) -> CudaExperts:
        return CudaExperts(spec, self._memory, self._backend.beside)

    def head(self, spec: v4.HeadSpec) -> CudaHead:
        return CudaHead(spec, self._memory)

    def join(self, spec: v4.JoinSpec) -> CudaJoin:
        return CudaJoin(spec, self._memory)

    def features(self, spec: v4.FeaturesSpec) -> CudaFeatures:
        assert self._block_keys is not None  # stages come first
        return CudaFeatures(spec, self._memory, self._block_keys.capacity)

    def markov_head(self, spec: v4.MarkovSpec) -> CudaMarkovHead:
        return CudaMarkovHead(spec, self._memory, self._block)

    # ── a draft block's streams ───────────────────────────────────────────────────────────────────────────

    def keep_streams(self, series: int, streams: Streams | LongStreams, batch: Batch) -> None:
        flat = streams.settle().reshape(streams.rows, -1)
        for slot, start, count, position in batch.sequences():
            self._pool.put(slot, series, position, flat[start : start + count])

    def previous_streams(self, series: int, streams: Streams | LongStreams, batch: Batch) -> torch.Tensor:
        now, parts = streams.settle(), list[torch.Tensor]()
        for slot, start, count, position in batch.sequences():
            if position > 0:
                parts.append(self._pool.get(slot, series, position - 1).view(1, *now.shape[1:]))
            parts.append(now[start : start + count - 1])
        return torch.cat(parts)

    def kept_streams(self, series: int, slot: int, first: int) -> torch.Tensor:
        return self._pool.get(slot, series, first).view(1, *self._shape)
