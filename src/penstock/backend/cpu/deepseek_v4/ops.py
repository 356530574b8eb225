"""How a step begins, and the makers of its ops."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Backend, DeviceWeight
from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.cpu.deepseek_v4.attention import CpuAttention
from penstock.backend.cpu.deepseek_v4.batch import Batch, Sequence, SequenceStates
from penstock.backend.cpu.deepseek_v4.described import Described, vector
from penstock.backend.cpu.deepseek_v4.dspark import CpuBlockAttention, CpuFeatures, CpuMarkovHead
from penstock.backend.cpu.deepseek_v4.ends import CpuEmbedding, CpuHead, CpuJoin
from penstock.backend.cpu.deepseek_v4.experts import CpuExperts
from penstock.backend.cpu.deepseek_v4.guesser import CpuGuesser
from penstock.backend.cpu.deepseek_v4.hyper import CpuHyper
from penstock.backend.cpu.deepseek_v4.router import CpuRouter
from penstock.backend.cpu.deepseek_v4.sizes import step_bytes
from penstock.backend.cpu.low_precision import round_attention, round_experts, round_join
from penstock.backend.cpu.memory import Buffer, Workspace
from penstock.backend.cpu.states import CpuStates, Slot, in_place
from penstock.backend.state import StatePool, Step
from penstock.native import structs
from penstock.native.library import native
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.quants.encode import DECODED

T = TypeVar("T")


class CpuOps(v4.LateDraftOps, v4.DSparkOps):
    def __init__(self, backend: Backend, pool: StatePool):
        assert isinstance(backend, CpuBackend)
        assert isinstance(pool, CpuStates)
        self._pool, self._threads, self._workspace = pool, backend.threads, Workspace()
        self._low_precision = backend.low_precision
        self._blocks: list[CpuAttention] = []
        self._states: WeakKeyDictionary[Slot, SequenceStates] = WeakKeyDictionary()
        self._frequencies: dict[int, Buffer] = {}  # by identity

    @staticmethod
    def step_bytes(backend: Backend, checkpoint: Checkpoint, rows: int) -> int:
        assert isinstance(backend, CpuBackend)
        return step_bytes(checkpoint, rows, backend.threads)

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, step: Step, blocks: range, settled: bool = False, since: int | None = None) -> Batch:
        chosen, sequences = slice(blocks.start, blocks.stop), []
        positions = Buffer(step.positions)
        for number, slot in enumerate(step.slots):
            start, stop = step.starts[number], step.starts[number + 1]
            states = self._states_of(slot)
            sequence = Sequence(slot, start, stop - start, int(step.positions[start]), states, since or 0)
            direct = settled or in_place(sequence.count)
            sequence.enter(chosen, direct)
            if not direct:
                for block in self._blocks[chosen]:
                    block.open(sequence, step.rows)
            sequences.append(sequence)
        rotations = {}
        for number in {id(block.spec.frequencies) for block in self._blocks[chosen]}:
            frequencies = self._frequencies[number]
            half = frequencies.array.shape
            cos = self._workspace.take(f"cos {number}", step.rows, half)
            sin = self._workspace.take(f"sin {number}", step.rows, half)
            native().ps_angles(
                *(positions.address, frequencies.address, step.rows, *half, cos.address, sin.address),
                self._threads,
            )
            rotations[number] = (cos, sin)
        return Batch(step, sequences, rotations)

    def _states_of(self, slot: int) -> SequenceStates:
        memory = self._pool.slots[slot]
        states = self._states.get(memory)
        if states is None:
            states = self._states[memory] = SequenceStates(slot, self._pool, self._blocks)
        return states

    def _state_at(self, block: int, slot: int, position: int) -> int:
        """Where a sequence's state of a block is described, told that rows follow from `position` on."""
        states = self._states_of(slot)
        states.described["position"][block] = position
        return int(states.addresses[block])

    def repeat(
        self,
        batch: Batch,
        work: Callable[[v4.Progress | None], T],
        progress: v4.Progress | None = None,
        blocks: range | None = None,
    ) -> T:
        del batch, blocks  # everything is called again
        return work(progress)

    def streams(self, x: Buffer, count: int) -> Buffer:
        rows, hidden = x.array.shape
        out = self._workspace.take("streams", rows, (count, hidden))
        out.array[...] = x.array[:, None]
        return out

    def received(self, streams: NDArray[np.float32], batch: Batch) -> Callable[[], Buffer]:
        del batch
        buffer = Buffer(np.ascontiguousarray(streams))
        return lambda: buffer

    # ── makers ────────────────────────────────────────────────────────────────────────────────────────────

    def attention(self, spec: v4.AttentionSpec, state: v4.AttentionState) -> CpuAttention:
        self._frequencies.setdefault(id(spec.frequencies), vector(spec.frequencies))
        number = len(self._blocks)
        kind = CpuBlockAttention if spec.block else CpuAttention
        block = kind(spec, state, number, self._pool, self._workspace, self._threads)
        if self._low_precision:
            round_attention(block)
        self._blocks.append(block)
        return block

    def embedding(self, weight: DeviceWeight) -> CpuEmbedding:
        return CpuEmbedding(weight, self._workspace)

    def hyper(self, spec: v4.HyperSpec) -> CpuHyper:
        return CpuHyper(spec, self._workspace, self._threads)

    def router(self, spec: v4.RouterSpec) -> CpuRouter:
        return CpuRouter(spec, self._workspace, self._threads)

    def experts(self, spec: v4.ExpertsSpec) -> CpuExperts:
        experts = CpuExperts(spec, self._workspace, self._threads)
        if self._low_precision:
            round_experts(experts)
        return experts

    def head(self, spec: v4.HeadSpec) -> CpuHead:
        return CpuHead(spec, self._workspace, self._threads)

    def join(self, spec: v4.JoinSpec) -> CpuJoin:
        join = CpuJoin(spec, self._workspace, self._threads)
        if self._low_precision:
            round_join(join)
        return join

    def features(self, spec: v4.FeaturesSpec) -> CpuFeatures:
        return CpuFeatures(spec, self._workspace, self._threads)

    def markov_head(self, spec: v4.MarkovSpec) -> CpuMarkovHead:
        return CpuMarkovHead(spec, self._workspace, self._threads)

    # ── a draft block's streams ───────────────────────────────────────────────────────────────────────────

    def keep_streams(self, series: int, streams: Buffer, batch: Batch) -> None:
        flat = streams.array.reshape(batch.rows, -1)
        for sequence in batch.sequences:
            rows = flat[sequence.start : sequence.start + sequence.count]
            self._pool.keep(sequence.slot, series, sequence.position, rows)

    def previous_streams(self, series: int, streams: Buffer, batch: Batch) -> Buffer:
        pairs = sum(sequence.count - (sequence.position == 0) for sequence in batch.sequences)
        n, hidden = streams.array.shape[1:]
        out, at = self._workspace.take("previous streams", pairs, (n, hidden)), 0
        for sequence in batch.sequences:
            if sequence.position > 0:
                row = self._pool.latest(sequence.slot, series, sequence.position - 1)
                out.array[at] = row.reshape(n, hidden)
                at += 1
            more = sequence.count - 1
            out.array[at : at + more] = streams.array[sequence.start : sequence.start + more]
            at += more
        return out

    def kept_streams(self, series: int, slot: int, first: int, count: int = 1) -> Buffer:
        ring = self._pool.slots[slot].series[series]
        at = first % len(ring)
        if at + count <= len(ring) and ring.dtype == np.float32:
            return Buffer(ring[at : at + count])
        out = self._workspace.take("kept streams", count, ring.shape[1:])
        out.array[...] = self._pool.read(slot, series, first, first + count)
        return out

    def guesser(self, parts: v4.DraftParts) -> CpuGuesser | None:
        embedding, join, hyper, attention, second, router, experts, head = parts
        assert isinstance(embedding, CpuEmbedding)
        assert isinstance(join, CpuJoin)
        assert isinstance(hyper, CpuHyper)
        assert isinstance(attention, CpuAttention)
        assert isinstance(second, CpuHyper)
        assert isinstance(router, CpuRouter)
        assert isinstance(experts, CpuExperts)
        assert isinstance(head, CpuHead)
        if self._low_precision or embedding.weight.info.kind not in DECODED:
            return None
        projections = [projection.address for projection in join.projections]
        frequencies = self._frequencies[id(attention.spec.frequencies)]
        described = Described(
            structs.Draft(
                *(embedding.weight.address, *(norm.address for norm in join.norms)),
                *((*projections, None, None) if len(projections) == 1 else (None, *projections)),
                *(frequencies.address, hyper.described.address, second.described.address),
                *(attention.described.address, attention.kv_alone.address, attention.keys_alone.address),
                *(router.described.address, experts.shared.address, head.described.address),
                *(experts.spec.limit, experts.spec.shared_limit, join.spec.eps),
            ),
            *(parts, frequencies),
        )
        state_at = partial(self._state_at, attention.block)
        return CpuGuesser(described, state_at, router.count, head.vocab, self._threads)

    def holds(self, slot: int) -> bool:
        return slot in self._pool.slots

    def last(self, streams: Buffer) -> Buffer:
        return streams if len(streams.array) == 1 else Buffer(streams.array[-1:])
