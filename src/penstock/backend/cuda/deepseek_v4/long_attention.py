"""An attention sublayer over a long step."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from penstock.backend import deepseek_v4 as v4
from penstock.backend.cuda.attention import CompressorState, RowsAt
from penstock.backend.cuda.deepseek_v4.long_steps import LongBatch
from penstock.backend.cuda.deepseek_v4.sizes import SCORE_BYTES
from penstock.backend.cuda.prefill_attention import (
    attend,
    commit_frontier,
    commit_window,
    keep_rows,
    pool_rows,
    select_rows,
)
from penstock.backend.cuda.prefill_products import HalfRows, make_halves, multiply, multiply_groups
from penstock.backend.cuda.weights import Packed


@dataclass
class Compressing:
    """A compressor's small weights, and where its rows lie."""

    ape: torch.Tensor  # [ratio, width]
    norm: torch.Tensor  # [dim]
    frontier: RowsAt
    rows: RowsAt

    def state(self, values: torch.Tensor, scores: torch.Tensor) -> CompressorState:
        return CompressorState(values, scores, self.ape, self.norm, self.frontier, self.rows)


@dataclass
class LongAttention:
    """inputs: q_a, kv, the compressors' values and scores, the indexer's gates; queries: q_b, and the indexer's."""

    spec: v4.AttentionSpec
    inputs: Sequence[Packed]
    queries: Sequence[Packed]
    out_a: Packed
    out_b: Packed
    q_norm: torch.Tensor
    kv_norm: torch.Tensor
    sinks: torch.Tensor
    window: RowsAt
    compressors: Sequence[Compressing]

    def run(self, x: HalfRows, batch: LongBatch) -> torch.Tensor:
        spec, rows, memory, places = self.spec, batch.rows, batch.memory, batch.places(self.spec.frequencies)
        outs = [memory.take(f"projection {i}", rows, m.rows) for i, m in enumerate(self.inputs)]
        multiply(self.inputs, x, outs)
        rank = memory.halves("query rank", rows, len(self.q_norm), x.planes)
        make_halves(outs[0], rank, self.q_norm, spec.eps)
        q = memory.take("queries", rows, spec.heads, spec.dim, dtype=torch.float16)
        multiply(self.queries[:1], rank, [q.view(rows, -1)])
        fresh = self._keep(outs[1], batch)
        states = [c.state(outs[2 + 2 * i], outs[3 + 2 * i]) for i, c in enumerate(self.compressors)]
        for state in states:
            pool_rows(state, places, spec.eps)
        picks = counts = None
        if spec.indexer is not None:
            picks, counts = self._select(spec.indexer, rank, outs[-1], batch)
        heads = HalfRows(memory.take("heads", 1, rows, spec.heads * spec.dim, dtype=torch.float16), None)
        compressor = self.compressors[0] if self.compressors else None
        assert rank.scales is not None
        attend(
            q, rank.scales, fresh, self.window, places, self.sinks, spec.window, spec.eps, heads,
            len(compressor.ape) if compressor else 0, compressor.rows if compressor else None, picks, counts,
        )  # fmt: skip
        for state in states:
            commit_frontier(state, places)
        middle = memory.take("attention middle", rows, self.out_b.columns)
        multiply_groups(self.out_a, heads, middle)
        y = memory.take("attention", rows, self.out_b.rows)
        inner = memory.halves("attention middle", rows, self.out_b.columns, x.planes)
        make_halves(middle, inner)
        multiply([self.out_b], inner, [y])
        return y

    def fill_window(self, x: HalfRows, batch: LongBatch) -> None:
        kv = batch.memory.take("projection 1", batch.rows, self.spec.dim)
        multiply(self.inputs[1:2], x, [kv])
        self._keep(kv, batch)

    def _keep(self, kv: torch.Tensor, batch: LongBatch) -> torch.Tensor:
        """The step's own key/value rows, of which the last go into the ring."""
        places = batch.places(self.spec.frequencies)
        fresh = batch.memory.take("keys", *kv.shape, dtype=torch.float16)
        keep_rows(kv, self.kv_norm, places, fresh, self.spec.eps)
        commit_window(fresh, self.window, places)
        return fresh

    def _select(
        self, spec: v4.IndexerSpec, rank: HalfRows, gates: torch.Tensor, batch: LongBatch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, memory, places = batch.rows, batch.memory, batch.places(self.spec.frequencies)
        q = memory.take("index queries", rows, spec.heads, spec.dim)
        multiply(self.queries[1:], rank, [q.view(rows, -1)])
        picks = memory.take("picks", rows, spec.topk, dtype=torch.int32)
        counts = memory.take("pick counts", rows, dtype=torch.int32)
        compressor = self.compressors[1]
        ratio = len(compressor.ape)
        visible = places.longest // ratio + 1
        at_once = max(4, min(rows, SCORE_BYTES // (4 * visible)))
        scores = memory.take("index scores", at_once, visible)
        select_rows(q, gates, compressor.rows, places, scores, picks, counts, ratio)
        return picks, counts
