"""Attention of one layer: shared key/value rows, a sliding window, and compressed rows beyond it."""

from torch import Tensor

from penstock.kernels.parts import Keys, Output, Projections, Queries, Rotation, Sight
from penstock.model.batch import Batch, Segment
from penstock.model.blueprint import Blueprint
from penstock.model.compressor import Compressor
from penstock.model.indexer import Indexer
from penstock.model.state import LayerState
from penstock.weights.config import AttentionKind, LayerConfig


class Attention:
    """One kv row per token serves all heads as key and as value; positions are turned back out of the result."""

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        c, simulate = blueprint.config, blueprint.simulate
        self.ops, self.sliding = blueprint.ops, layer.attention is AttentionKind.SLIDING
        self.compressor: Compressor | None = None
        self.indexer: Indexer | None = None

        # Everything that reads the layer's input is one product: q_a, kv, then the compressors' and the indexer's.
        weights = [
            blueprint.weight(f"{prefix}.attn_q_a.weight"),
            blueprint.weight(f"{prefix}.attn_kv.weight"),
        ]
        if not self.sliding:
            self.compressor = Compressor(blueprint, f"{prefix}.attn_compressor", index=False)
            weights += self.compressor.weights
        if layer.attention is AttentionKind.SPARSE:
            self.indexer = Indexer(blueprint, prefix, layer)
            weights += (*self.indexer.compressor.weights, self.indexer.proj)
        self.inputs = Projections(tuple(weights), rounded=2, simulate=simulate)
        q_column, kv_column, *others = self.inputs.columns
        if self.compressor is not None:
            self.compressor.read_from(others[0], others[1])
        if self.indexer is not None:
            self.indexer.compressor.read_from(others[2], others[3])
            self.indexer.read_from(others[4])

        self.queries = Queries(
            column=q_column,
            norm=blueprint.vector(f"{prefix}.attn_q_a_norm.weight"),
            q_b=blueprint.weight(f"{prefix}.attn_q_b.weight"),
            heads=c.heads,
            dim=c.head_dim,
            index_q_b=None if self.indexer is None else self.indexer.q_b,
            index_heads=c.index_heads,
            index_dim=c.index_dim,
            eps=c.rms_eps,
            simulate=simulate,
        )
        kv_norm = blueprint.vector(f"{prefix}.attn_kv_a_norm.weight")
        self.keys = Keys(kv_column, kv_norm, c.rms_eps, simulate)
        self.kv_alone = Projections((weights[1],), rounded=1, simulate=simulate)  # see `remember`
        self.keys_alone = Keys(0, kv_norm, c.rms_eps, simulate)
        self.sight = Sight(c.window, layer.ratio, blueprint.vector(f"{prefix}.attn_sinks.weight"))
        self.output = Output(
            out_a=blueprint.weight(f"{prefix}.attn_output_a.weight"),
            out_b=blueprint.weight(f"{prefix}.attn_output_b.weight"),
            groups=c.o_groups,
            simulate=simulate,
        )

    def rotation(self, batch: Batch) -> Rotation:
        return batch.plain if self.sliding else batch.compressed

    def forward(self, x: Tensor, batch: Batch, states: list[LayerState]) -> Tensor:
        """x [rows, hidden] → [rows, hidden]; states: this layer's, one per segment."""
        ops, rotation = self.ops, self.rotation(batch)
        projected = ops.project(x, self.inputs)
        q, index_q = ops.queries(
            projected, self.queries, rotation
        )  # [rows, heads, head_dim], normed and turned
        for segment, state in zip(batch.segments, states, strict=True):
            ops.remember(projected, self.keys, rotation, segment, state.window)
            rows, picks = None, None
            if self.compressor is not None:
                # Before attention: the token that completes a window already sees that window's row.
                assert state.compressor is not None
                self.compressor.push(projected, segment, state.compressor)
                rows = state.compressor.rows
            if self.indexer is not None and index_q is not None:
                picks = self._picks(index_q, projected, segment, state)
            ops.look(q, self.sight, rotation, segment, state.window, rows, picks)
            state.window.trim()
        return ops.output(q, self.output)

    def _picks(
        self, index_q: Tensor, projected: Tensor, segment: Segment, state: LayerState
    ) -> Tensor | None:
        assert self.indexer is not None
        assert state.indexer is not None
        self.indexer.compressor.push(projected, segment, state.indexer)
        return self.indexer.choose(index_q, projected, segment, state.indexer)

    def remember(self, x: Tensor, batch: Batch, states: list[LayerState]) -> None:
        """The part of `forward` that fills the window of a sliding layer."""
        projected = self.ops.project(x, self.kv_alone)
        for segment, state in zip(batch.segments, states, strict=True):
            self.ops.remember(projected, self.keys_alone, self.rotation(batch), segment, state.window)
            state.window.trim()
