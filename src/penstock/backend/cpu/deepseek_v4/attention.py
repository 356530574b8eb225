"""An attention sublayer of DeepSeek-V4."""

from ctypes import addressof, c_void_p
from typing import Any

from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.cpu.deepseek_v4.batch import Batch, Sequence
from penstock.backend.cpu.deepseek_v4.described import Described, expect, vector, weight_of
from penstock.backend.cpu.memory import Buffer, Workspace
from penstock.backend.cpu.states import CpuStates
from penstock.backend.cpu.weights import CpuWeight
from penstock.backend.state import DTYPES
from penstock.native import structs
from penstock.native.library import native


class CpuAttention(v4.Attention):
    """The whole sublayer in one native call: a decoded token has so little to compute between two of its steps that
    leaving and entering the library for each would cost more than many of them take."""

    def __init__(
        self,
        spec: v4.AttentionSpec,
        state: v4.AttentionState,
        block: int,
        pool: CpuStates,
        workspace: Workspace,
        threads: int,
    ):
        self.spec, self.state, self.block = spec, state, block
        self._pool, self._workspace, self._threads = pool, workspace, threads
        compressor, indexer = spec.compressor, spec.indexer
        half = len(spec.frequencies)

        # Everything that reads the layer's input is one product: q_a, kv, then the compressors' and the indexer's.
        self.q_a, self.kv, self.out_b = weight_of(spec.q_a), weight_of(spec.kv), weight_of(spec.out_b)
        weights = [self.q_a, self.kv]
        for each in (compressor, indexer.compressor if indexer else None):
            if each is not None:
                weights += [weight_of(each.values), weight_of(each.scores)]
        if indexer is not None:
            weights.append(weight_of(indexer.gates))
        sizes = [weight.info.shape[0] for weight in weights]
        columns = [sum(sizes[:number]) for number in range(len(sizes))]
        self._check(weights, half)

        inputs = self._projections(weights)
        q_norm, kv_norm, sinks = vector(spec.q_norm), vector(spec.kv_norm), vector(spec.sinks)
        q_b, index_q_b = weight_of(spec.q_b), weight_of(indexer.q_b) if indexer else None
        self.queries = Described(
            structs.Queries(
                *(q_b.address, index_q_b.address if index_q_b else None, q_norm.address),
                *(columns[0], len(spec.q_norm), spec.heads, spec.dim),
                *((indexer.heads, indexer.dim) if indexer else (0, 0)),
                half,
                eps=spec.eps,
            ),
            *(q_b, index_q_b, q_norm),
        )
        self.keys = self._keys(columns[1], kv_norm, half)
        self.compressor = self.index_compressor = None
        if compressor is not None:
            self.compressor = self._compressor(compressor, columns[2:4], half)
        if indexer is not None:
            self.index_compressor = self._compressor(indexer.compressor, columns[4:6], half)
        ratio = compressor.ratio if compressor is not None else 1
        attention = Described(
            structs.Attention(sinks.address, spec.heads, spec.dim, spec.window + spec.block, ratio, half),
            sinks,
        )
        out_a = weight_of(spec.out_a)
        output = Described(structs.Output(out_a.address, self.out_b.address, spec.groups), out_a, self.out_b)
        compressors = (self.compressor, self.index_compressor)
        steps = (inputs, self.queries, self.keys, *compressors, attention, output)
        self._described = Described(
            structs.AttentionLayer(
                *(None if step is None else step.address for step in steps),
                *((columns[6], indexer.topk) if indexer else (0, 0)),
            ),
            *steps,
        )
        self._hidden = (self.out_b.info.shape[0],)
        # What fills the window alone, for a draft block.
        self.kv_alone, self.keys_alone = self._projections([self.kv]), self._keys(0, kv_norm, half)
        self._capacity = pool.capacities[state.window]

    def _check(self, weights: list[CpuWeight], half: int) -> None:
        spec, name = self.spec, self.spec.q_b.info.name
        widths = {weight.info.shape[1] for weight in weights}
        most = native().ps_limit(b"projections")
        expect(len(widths) == 1 and len(weights) <= most, f"{name}: inputs of {sorted(widths)} columns")
        expect(
            spec.q_b.info.shape == (spec.heads * spec.dim, len(spec.q_norm))
            and len(spec.kv_norm) == spec.dim
            and len(spec.sinks) == spec.heads
            and spec.groups * spec.out_a.info.shape[1] == spec.heads * spec.dim
            and spec.out_a.info.shape[0] % spec.groups == 0
            and spec.out_b.info.shape[1] == spec.out_a.info.shape[0]
            and 2 * half <= spec.dim
            and spec.window > 0,
            f"{name}: {spec.heads} heads of {spec.dim} do not fit the sublayer's other parts",
        )
        if spec.compressor is not None:
            expect(len(spec.compressor.norm) == spec.dim, f"{name}: a compressor of other rows")
        if (indexer := spec.indexer) is not None:
            expect(
                spec.compressor is not None
                and indexer.compressor.ratio == spec.compressor.ratio
                and len(indexer.compressor.norm) == indexer.dim
                and indexer.q_b.info.shape == (indexer.heads * indexer.dim, len(spec.q_norm))
                and 2 * half <= indexer.dim
                and indexer.topk > 0,
                f"{name}: an indexer that does not fit its compressor",
            )

    def _projections(self, weights: list[CpuWeight]) -> Described:
        array = (c_void_p * len(weights))(*(weight.address for weight in weights))
        width = sum(weight.info.shape[0] for weight in weights)
        return Described(structs.Projections(addressof(array), len(weights), width), array, *weights)

    def _keys(self, column: int, norm: Buffer, half: int) -> Described:
        spec = self.spec
        described = structs.Keys(norm.address, column, spec.dim, half, eps=spec.eps)
        return Described(described, norm)

    def _compressor(self, spec: v4.CompressorSpec, columns: list[int], half: int) -> Described:
        ape, norm, frequencies = vector(spec.ape), vector(spec.norm), vector(spec.frequencies)
        (ratio, width), dim = spec.ape.shape, len(spec.norm)
        expect(
            width in (dim, 2 * dim) and len(spec.frequencies) == half,
            f"{spec.values.info.name}: position biases {list(spec.ape.shape)} for rows of {dim}",
        )
        described = structs.Compressor(
            *(ape.address, norm.address, frequencies.address, *columns),
            *(width, dim, half, ratio),
            eps=self.spec.eps,
        )
        return Described(described, ape, norm, frequencies)

    def run(self, x: Buffer, batch: Batch) -> Buffer:
        cos, sin = batch.rotations[id(self.spec.frequencies)]
        out = self._workspace.take("attention", batch.rows, self._hidden)
        native().ps_attention_layer_run(
            *(self._described.address, batch.states(self.block), len(batch.sequences), x.address, batch.rows),
            *(cos.address, sin.address, out.address, self._threads),
        )
        self._stage_window(batch)
        return out

    def open(self, sequence: Sequence, rows: int) -> None:
        """Says where the new rows of a sequence go that has several of the step's `rows`: they wait outside of the
        rings until the step has succeeded."""
        own, state, slot = sequence.states.described[self.block], self.state, sequence.slot
        count, position = sequence.count, sequence.position
        fresh = self._pool.stage(slot, state.window, position, count)
        if count > self._capacity:  # attention needs all of them, the ring will keep the last
            fresh = self._fresh(rows)[sequence.start : sequence.start + count]
        own["fresh"] = fresh.ctypes.data
        for name, frontier in (("compressed", state.frontier), ("index", state.index_frontier)):
            if frontier is not None:
                waiting = self._pool.stage(slot, frontier, position, count)
                own[name]["fresh"], own[name]["kept"] = waiting.ctypes.data, len(waiting)

    def _fresh(self, rows: int) -> NDArray[Any]:
        """Room for all new rows of a step; blocks take turns with it.  [rows, dim]"""
        series = self._pool.layout.series[self.state.window]
        return self._workspace.take(
            f"fresh rows of {series.width}", rows, (series.width,), DTYPES[series.dtype]
        ).array

    def _stage_window(self, batch: Batch) -> None:
        for sequence in batch.sequences:
            if sequence.count > self._capacity:
                fresh = self._fresh(batch.rows)[sequence.start : sequence.start + sequence.count]
                staged = self._pool.slots[sequence.slot].staged[self.state.window]
                staged.rows[...] = fresh[-self._capacity :]

    def fill_window(self, x: Buffer, batch: Batch) -> None:
        cos, sin = batch.rotations[id(self.spec.frequencies)]
        dim, half = self.spec.dim, len(self.spec.frequencies)
        projected = self._workspace.take("draft keys", batch.rows, (dim,))
        native().ps_project(self.kv_alone.address, x.address, batch.rows, projected.address, self._threads)
        for sequence in batch.sequences:
            own, start = sequence.states.described[self.block], sequence.start
            native().ps_keys_run(
                *(self.keys_alone.address, projected.address + 4 * start * dim, dim),
                *(cos.address + 4 * start * half, sin.address + 4 * start * half, sequence.count),
                *(int(own["window"]), int(own["fresh"]) or None),
                *(sequence.position, self._threads),
            )
        self._stage_window(batch)
