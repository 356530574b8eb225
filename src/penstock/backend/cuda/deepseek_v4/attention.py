"""An attention sublayer of DeepSeek-V4."""

import torch

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import DeviceWeight
from penstock.backend.cuda.attention import (
    Attention,
    CompressorState,
    Indexer,
    MakeTurns,
    Places,
    Remember,
    RowsAt,
)
from penstock.backend.cuda.deepseek_v4.batch import Batch, Launch, StepMemory, run, smaller_pieces
from penstock.backend.cuda.deepseek_v4.hyper import SublayerInput
from penstock.backend.cuda.deepseek_v4.long_attention import Compressing, LongAttention
from penstock.backend.cuda.deepseek_v4.long_steps import LongBatch
from penstock.backend.cuda.dense import Dense
from penstock.backend.cuda.hyper import MakeImage
from penstock.backend.cuda.inputs import DIGITS, PIECE, DigitImage, Image, Input, forms_of
from penstock.backend.cuda.launch import cut
from penstock.backend.cuda.placed import CudaWeight, vector
from penstock.backend.cuda.plain import PlainAttention, PlainIndexer
from penstock.backend.cuda.prefill_products import HalfRows, prepare
from penstock.backend.cuda.weights import Packed


def packed(weight: DeviceWeight, groups: int = 1) -> Packed:
    assert isinstance(weight, CudaWeight)
    return weight.packed(groups)


class _Compressor:
    def __init__(self, spec: v4.CompressorSpec, frontier: int, rows: int, memory: StepMemory):
        self.values, self.scores = packed(spec.values), packed(spec.scores)
        self.ape, self.norm = vector(spec.ape), vector(spec.norm)
        self.frontier, self.rows = memory.pool.places[frontier], memory.pool.places[rows]
        self.ratio = spec.ratio

    def state(self, values: torch.Tensor, scores: torch.Tensor) -> CompressorState:
        return CompressorState(values, scores, self.ape, self.norm, self.frontier, self.rows)


class CudaAttention(v4.Attention):
    """Seven launches: projections of the input, queries, what is kept, selection in two, attention, and the output in
    two."""

    def __init__(self, spec: v4.AttentionSpec, state: v4.AttentionState, memory: StepMemory, cuts: bool):
        """cuts: a graph of the step is cut before this block, if it is"""
        self._cuts = cuts
        self._spec, self._memory, pool = spec, memory, memory.pool
        self._next_mix = len(memory.mixes)
        compressor, indexer = spec.compressor, spec.indexer
        self._check(spec)
        self._kind = pool.layout.series[state.window].dtype
        self._window = pool.places[state.window]
        self._q_norm, self._kv_norm, self._sinks = (
            vector(v) for v in (spec.q_norm, spec.kv_norm, spec.sinks)
        )
        self._compressors: list[_Compressor] = []
        if compressor is not None and state.frontier is not None and state.rows is not None:
            self._compressors.append(_Compressor(compressor, state.frontier, state.rows, memory))
        if indexer is not None and state.index_frontier is not None and state.index_rows is not None:
            self._compressors.append(
                _Compressor(indexer.compressor, state.index_frontier, state.index_rows, memory)
            )
        # Everything that reads the layer's input is one product: q_a, kv, the compressors' and the indexer's.
        self._kv = packed(spec.kv)
        self._inputs = [packed(spec.q_a), self._kv]
        for each in self._compressors:
            self._inputs += [each.values, each.scores]
        self._queries = [packed(spec.q_b)]
        if indexer is not None:
            self._inputs.append(packed(indexer.gates))
            self._queries.append(packed(indexer.q_b))
        self._out_a, self._out_b = packed(spec.out_a, spec.groups), packed(spec.out_b)
        self._places = memory.places(spec.frequencies)
        self._made: dict[tuple[str, int], tuple[int, list[Launch]]] = {}
        self._hidden = self._out_b.rows
        self._long = LongAttention(
            spec, self._inputs, self._queries, self._out_a, self._out_b, self._q_norm, self._kv_norm, self._sinks,
            self._window, [Compressing(c.ape, c.norm, c.frontier, c.rows) for c in self._compressors],
        )  # fmt: skip
        if memory.long.expected:
            prepare((m.kind, False) for m in (*self._inputs, *self._queries, self._out_a, self._out_b))

    def _check(self, spec: v4.AttentionSpec) -> None:
        group = spec.heads * spec.dim // spec.groups
        if (
            spec.q_b.info.shape != (spec.heads * spec.dim, len(spec.q_norm))
            or spec.out_a.info.shape[1] != group
            or spec.out_a.info.shape[0] % spec.groups
            or (spec.groups > 1 and group % 4)
            or spec.out_b.info.shape[1] != spec.out_a.info.shape[0]
        ):
            raise ValueError(
                f"{spec.q_b.info.name}: {spec.heads} heads of {spec.dim} do not fit the sublayer's other parts"
            )

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, x: SublayerInput | HalfRows, batch: Batch) -> torch.Tensor:
        if isinstance(x, HalfRows):
            assert isinstance(batch, LongBatch)
            return self._long.run(x, batch)
        if self._cuts and self._memory.cuts:
            cut()
        self._launch("run", x)
        return self._out(batch.rows)

    def fill_window(self, x: SublayerInput | HalfRows, batch: Batch) -> None:
        if isinstance(x, HalfRows):
            assert isinstance(batch, LongBatch)
            return self._long.fill_window(x, batch)
        return self._launch("window", x)

    def _launch(self, what: str, x: SublayerInput) -> None:
        matrices = self._inputs if what == "run" else [self._kv]
        key = (what, x.rows)

        def forms(size: int) -> int:
            return forms_of([m.kind for m in matrices], min(size, x.rows))

        if key not in self._made:

            def make(size: int) -> tuple[int, list[Launch]]:
                images = x.images(forms(size), size)
                return size, self._launches(images) if what == "run" else self._keys_alone(images)

            self._made[key] = smaller_pieces(make)
            run(self._made[key][1])
            return
        size, launches = self._made[key]
        x.images(forms(size), size)
        run(launches)

    def _out(self, rows: int) -> torch.Tensor:
        return self._memory.workspace.take("attention", self._hidden)[:rows]

    def _take(self, name: str, width: int) -> torch.Tensor:
        """[rows, width], of which rows begin at multiples of 32 bytes"""
        return self._memory.workspace.take(name, -(-width // 8) * 8)[:, :width]

    def _keys_alone(self, images: list[tuple[int, int, Image]]) -> list[Launch]:
        kv, launches = self._take("keys alone", self._spec.dim), list[Launch]()
        for a, b, image in images:
            launches.append(Dense([self._kv], image, [kv[a:b]], b - a))
            places = self._places.part(a, b)
            # A draft's window is filled outside of steps, which begin with it.
            launches.append(MakeTurns(places))
            launches.append(
                Remember(kv[a:b], self._kv_norm, self._window, places, [], self._spec.eps, self._kind)
            )
        return launches

    def _launches(self, images: list[tuple[int, int, Image]]) -> list[Launch]:
        """One op after the other for all pieces: a row sees what rows of pieces before it have left."""
        spec = self._spec
        outs = [self._take(f"projection {i}", m.rows) for i, m in enumerate(self._inputs)]
        qs = [self._memory.workspace.take(f"queries {i}", m.rows) for i, m in enumerate(self._queries)]
        first, second, keep, pick, attend, last = (list[Launch]() for _ in range(6))
        for a, b, image in images:
            n, places = b - a, self._places.part(a, b)
            own = [out[a:b] for out in outs]
            q = [part[a:b] for part in qs]
            first.append(Dense(self._inputs, image, own, n))
            second += self._query(own[0], q, a, b)
            states = [c.state(own[2 + 2 * i], own[3 + 2 * i]) for i, c in enumerate(self._compressors)]
            keep.append(Remember(own[1], self._kv_norm, self._window, places, states, spec.eps, self._kind))
            picked = None
            if spec.indexer is not None:
                picked = self._picked(a, b)
                pick.append(self._indexer(spec.indexer, q[1], own[-1], places, picked, a, b))
            x, launch = self._attention(q[0], places, picked, a, b)
            attend.append(launch)
            last += self._output(x, a, b)
        return [*first, *second, *keep, *pick, *attend, *last]

    def _query(self, x: torch.Tensor, q: list[torch.Tensor], a: int, b: int) -> list[Launch]:
        rows, width, eps = b - a, x.shape[1], self._spec.eps
        if rows <= PIECE:
            return [Dense(self._queries, x, q, rows, self._q_norm, eps)]
        # Every block would make the forms of all rows.
        forms = forms_of([m.kind for m in self._queries], rows)
        image = self._memory.workspace.once(("queries", a, rows, forms), lambda: Image(rows, width, forms))
        return [MakeImage(x, image, self._q_norm, eps), Dense(self._queries, image, q, rows)]

    def _picked(self, a: int, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        assert self._spec.indexer is not None
        workspace = self._memory.workspace
        picks = workspace.take("picks", self._spec.indexer.topk, dtype=torch.int32)
        return picks[a:b], workspace.take("pick counts", dtype=torch.int32)[a:b]

    def _indexer(
        self, spec: v4.IndexerSpec, q: torch.Tensor, gates: torch.Tensor, places: Places,
        picked: tuple[torch.Tensor, torch.Tensor], a: int, b: int,
    ) -> Launch:  # fmt: skip
        compressor = self._compressors[1]
        scores = self._memory.workspace.take("index scores", compressor.rows.capacity)[a:b]
        shaped = q.view(b - a, spec.heads, spec.dim)
        if Indexer.takes(spec.heads, spec.dim, self._kind) and gates.stride(0) == spec.heads:
            return Indexer(
                shaped, gates, compressor.rows, places, scores, *picked, compressor.ratio, early=True
            )
        return PlainIndexer(
            shaped, gates, compressor.rows, places, scores, *picked, compressor.ratio, self._kind
        )

    def _attention(
        self, q: torch.Tensor, places: Places, picked: tuple[torch.Tensor, torch.Tensor] | None, a: int, b: int
    ) -> tuple[Input, Launch]:  # fmt: skip
        compressed = self._compressors[0] if self._compressors else None
        beyond = (compressed.ratio, compressed.rows) if compressed else (0, None)
        return self._attend(q, places, self._spec.window, beyond, picked, a, b)

    def _attend(
        self, q: torch.Tensor, places: Places, window: int, beyond: tuple[int, RowsAt | None],
        picked: tuple[torch.Tensor, torch.Tensor] | None, a: int, b: int,
    ) -> tuple[Input, Launch]:  # fmt: skip
        """window: how many rows of it are seen; beyond: the ratio of other rows, and where they lie"""
        spec, rows, workspace = self._spec, b - a, self._memory.workspace
        shaped, picks = q.view(rows, spec.heads, spec.dim), picked or (None, None)
        ratio, where = beyond
        if not Attention.takes(spec.heads, spec.dim, places.rope, self._kind):
            out = workspace.take("heads", spec.heads * spec.dim)[a:b]
            return out, PlainAttention(
                shaped, self._window, places, self._sinks, window, spec.eps, out, self._kind, ratio, where, *picks
            )  # fmt: skip
        given = (shaped, self._window, places, self._sinks, window, spec.eps, ratio, where, picks[0])
        apart = None
        if Attention.many(rows, spec.heads):
            apart = workspace.take("sums apart", Attention.apart_floats(spec.heads))[a:b]
        if forms_of([self._out_a.kind], rows) == DIGITS:
            width = spec.heads * spec.dim // spec.groups
            image = workspace.once(
                ("heads", a, rows, width, spec.groups), lambda: Image(rows, width, DIGITS, spec.groups)
            )
            return image, Attention(*given, digits=image, early=True, apart=apart)
        out = workspace.take("heads", spec.heads * spec.dim)[a:b]
        return out, Attention(*given, out=out, early=True, apart=apart)

    def _output(self, x: Input, a: int, b: int) -> list[Launch]:
        rows, workspace = b - a, self._memory.workspace
        width, y = self._out_b.columns, workspace.take("attention", self._hidden)[a:b]
        ahead = self._memory.mix(self._next_mix)
        whole_tiles = self._out_a.count == 1 or self._out_a.rows % 16 == 0
        if whole_tiles and forms_of([self._out_b.kind], 8) == DIGITS:
            middle = workspace.once(("middle", a, rows, width), lambda: DigitImage(rows, width))
            first = Dense([self._out_a], x, [middle.values], rows, digits=middle)
            return [first, Dense([self._out_b], middle.image, [y], rows, ahead=ahead)]
        floats = self._take("attention middle", width)[a:b]
        first = Dense([self._out_a], x, [floats], rows)
        return [first, Dense([self._out_b], floats, [y], rows, ahead=ahead)]
