"""The ops around attention and experts, and how a step begins."""

from collections.abc import Callable, Iterable
from ctypes import c_int64, c_void_p
from functools import partial
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Backend, DeviceWeight, Logits
from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.cpu.deepseek_v4.attention import CpuAttention
from penstock.backend.cpu.deepseek_v4.batch import Batch, Sequence, SequenceStates
from penstock.backend.cpu.deepseek_v4.described import Described, expect, vector, weight_of
from penstock.backend.cpu.deepseek_v4.dspark import CpuBlockAttention, CpuFeatures, CpuMarkovHead
from penstock.backend.cpu.deepseek_v4.experts import CpuExperts
from penstock.backend.cpu.deepseek_v4.guesser import CpuGuesser
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


class CpuHyper(v4.Hyper):
    def __init__(self, spec: v4.HyperSpec, workspace: Workspace, threads: int):
        n, hidden = spec.streams, len(spec.norm)
        width = (2 + n) * n
        most = native().ps_limit(b"streams")
        fn = weight_of(spec.fn)
        expect(
            0 < n <= most
            and fn.info.shape == (width, n * hidden)
            and spec.base.size == width
            and spec.scale.size == 3,
            f"{fn.info.name}: {list(fn.info.shape)} does not fit {n} streams of {hidden}, at most {most}",
        )
        base, scale, norm = vector(spec.base), vector(spec.scale), vector(spec.norm)
        self.described = Described(
            structs.Hyper(
                *(fn.address, base.address, scale.address, norm.address),
                *(n, hidden, spec.iterations, spec.eps, spec.rms_eps),
            ),
            *(fn, base, scale, norm),
        )
        self._shape, self._mix = (hidden,), (width,)
        self._workspace, self._threads = workspace, threads

    def enter(self, streams: Buffer) -> tuple[Buffer, Buffer]:
        return self._enter(None, None, streams)

    def between(self, y: Buffer, streams: Buffer, mix: Buffer) -> tuple[Buffer, Buffer]:
        return self._enter(y.address, mix.address, streams)

    def _enter(self, y: int | None, before: int | None, streams: Buffer) -> tuple[Buffer, Buffer]:
        rows = len(streams.array)
        x = self._workspace.take("sublayer input", rows, self._shape)  # [rows, hidden]
        mix = self._workspace.take("hyper mix", rows, self._mix)  # [rows, pre n | post n | comb n · n]
        native().ps_hyper_enter(
            *(
                self.described.address,
                y,
                before,
                streams.address,
                rows,
                x.address,
                mix.address,
                self._threads,
            )
        )
        return x, mix

    def leave(self, y: Buffer, streams: Buffer, mix: Buffer) -> None:
        native().ps_hyper_leave(
            *(y.address, streams.address, mix.address, *streams.array.shape, self._threads)
        )


class CpuRouter(v4.Router):
    def __init__(self, spec: v4.RouterSpec, workspace: Workspace, threads: int):
        gate = weight_of(spec.gate)
        experts, name = gate.info.shape[0], gate.info.name
        table = None if spec.table is None else Buffer(np.ascontiguousarray(spec.table, np.int64))
        bias = None if spec.bias is None else vector(spec.bias)
        expect(0 < spec.count <= experts, f"{name}: {spec.count} of {experts} experts")
        expect(bias is None or bias.array.size == experts, f"{name}: a bias for other experts")
        expect(
            table is None
            or (
                table.array.shape[1] == spec.count
                and bool(((table.array >= 0) & (table.array < experts)).all())
            ),
            f"{name}: a table of other experts",
        )
        self.described = Described(
            structs.Router(
                *(gate.address, bias.address if bias else None, table.address if table else None),
                *(spec.count, spec.normalize, spec.scale),
            ),
            *(gate, bias, table),
        )
        self.count, self._workspace, self._threads = spec.count, workspace, threads

    def run(self, x: Buffer, batch: Batch) -> tuple[Buffer, Buffer]:
        return self._route(x, batch, "expert")

    def guess(self, x: Buffer, batch: Batch) -> NDArray[np.int64]:
        return self._route(x, batch, "guessed expert")[0].array

    def _route(self, x: Buffer, batch: Batch, name: str) -> tuple[Buffer, Buffer]:
        ids = self._workspace.take(f"{name} ids", batch.rows, (self.count,), np.int64)
        weights = self._workspace.take(f"{name} weights", batch.rows, (self.count,))
        native().ps_route_rows(
            *(self.described.address, x.address, batch.tokens.address, batch.rows),
            *(ids.address, weights.address, self._threads),
        )
        return ids, weights


class CpuHead(v4.Head):
    def __init__(self, spec: v4.HeadSpec, workspace: Workspace, threads: int):
        n, hidden = spec.streams, len(spec.norm)
        fn = weight_of(spec.fn)
        expect(
            fn.info.shape == (n, n * hidden) and spec.base.size == n and spec.scale.size in (1, n),
            f"{fn.info.name}: {list(fn.info.shape)} does not fit {n} streams of {hidden}",
        )
        base, norm = vector(spec.base), vector(spec.norm)
        scale = vector(np.broadcast_to(spec.scale, (n,)))
        self.described = Described(
            structs.Head(
                *(fn.address, base.address, scale.address, norm.address, n, hidden, spec.eps, spec.rms_eps)
            ),
            *(fn, base, scale, norm),
        )
        self._streams, self._hidden, self.vocab = (n, hidden), (hidden,), spec.vocab
        self._workspace, self._threads = workspace, threads

    def run(self, streams: Buffer, rows: NDArray[np.int64], output: Iterable[DeviceWeight]) -> Logits:
        count = len(rows)
        chosen = streams
        if count != len(streams.array):
            chosen = self._workspace.take("head streams", count, self._streams)
            np.take(streams.array, rows, axis=0, out=chosen.array)
        x = self._workspace.take("head input", count, self._hidden)
        native().ps_head_input(self.described.address, chosen.address, count, x.address, self._threads)
        logits = np.empty((count, self.vocab), np.float32)
        at = 0
        for piece in output:
            weight = weight_of(piece)
            native().ps_products(
                *((c_void_p * 1)(weight.address), 1, x.address, *self._hidden, count),
                *((c_void_p * 1)(logits.ctypes.data + 4 * at), (c_int64 * 1)(self.vocab), self._threads),
            )
            at += weight.info.shape[0]
        return logits


class CpuEmbedding(v4.Embedding):
    def __init__(self, weight: DeviceWeight, workspace: Workspace):
        self.weight, self._workspace = weight_of(weight), workspace

    def run(self, batch: Batch) -> Buffer:
        out = self._workspace.take("embedded", batch.rows, self.weight.info.shape[1:])  # [rows, hidden]
        size = out.array.strides[0]
        for row, token in enumerate(batch.step.tokens.tolist()):
            self.weight.row(token, out.array[row], out.address + row * size)
        return out


class CpuJoin(v4.Join):
    def __init__(self, spec: v4.JoinSpec, workspace: Workspace, threads: int):
        self.spec, self._workspace, self._threads = spec, workspace, threads
        self.projections = [weight_of(projection) for projection in spec.projections]
        self.norms = vector(spec.embedding_norm), vector(spec.stream_norm)
        self.round_group = 0  # channels that share a scale where inputs are rounded; 0: they are not

    def run(self, streams: Buffer, embedded: Buffer) -> Buffer:
        n, hidden = self.spec.streams, self.spec.hidden
        rows = len(streams.array)
        e = self._normed("draft embedded", embedded, rows, self.norms[0])
        h = self._normed("draft streams", streams, rows * n, self.norms[1])
        out = self._workspace.take("draft input", rows, (n, hidden))
        if len(self.projections) == 1:  # columns: embedding first, then hidden
            both = self._workspace.take("draft both", rows * n, (2 * hidden,))
            both.array.reshape(rows, n, 2 * hidden)[..., :hidden] = e.array[:, None]
            both.array[:, hidden:] = h.array
            self._product(0, both, out)
        else:
            projected = self._workspace.take("draft projected", rows, (hidden,))
            self._product(0, e, projected)
            self._product(1, h, out)
            out.array += projected.array[:, None]
        return out

    def _normed(self, name: str, x: Buffer, rows: int, norm: Buffer) -> Buffer:
        out = self._workspace.take(name, rows, (self.spec.hidden,))
        native().ps_rms_norm(
            *(x.address, norm.address, rows, self.spec.hidden, self.spec.eps, out.address, self._threads)
        )
        if self.round_group:
            native().ps_round_fp8(out.address, rows, self.spec.hidden, self.round_group, self._threads)
        return out

    def _product(self, number: int, x: Buffer, out: Buffer) -> None:
        rows, columns = x.array.shape
        native().ps_products(
            *((c_void_p * 1)(self.projections[number].address), 1, x.address, columns, rows),
            *((c_void_p * 1)(out.address), (c_int64 * 1)(self.spec.hidden), self._threads),
        )


class CpuOps(v4.Ops):
    late = True

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

    def begin(self, step: Step, blocks: range, settled: bool = False, since: int = 0) -> Batch:
        chosen, sequences = slice(blocks.start, blocks.stop), []
        positions = Buffer(step.positions)
        for number, slot in enumerate(step.slots):
            start, stop = step.starts[number], step.starts[number + 1]
            states = self._states_of(slot)
            sequence = Sequence(slot, start, stop - start, int(step.positions[start]), states, since)
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
        self, batch: Batch, work: Callable[[v4.Progress | None], T], progress: v4.Progress | None = None
    ) -> T:
        del batch  # everything is called again
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
