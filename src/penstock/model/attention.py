"""Attention of one layer: shared key/value rows, a sliding window, and compressed rows beyond it."""

from torch import Tensor

from penstock.kernels import parts
from penstock.kernels.parts import Keys, LayerRows, Output, Projections, Queries, Rotation, Sight
from penstock.model.batch import Batch
from penstock.model.blueprint import Blueprint
from penstock.model.compressor import Compressor
from penstock.model.indexer import Indexer
from penstock.weights.config import AttentionKind, LayerConfig


class Attention:
    """One kv row per token serves all heads as key and as value; positions are turned back out of the result."""

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        c, simulate = blueprint.config, blueprint.simulate
        self.ops, self.sliding = blueprint.ops, layer.attention is AttentionKind.SLIDING
        compressor = indexer = None

        # Everything that reads the layer's input is one product: q_a, kv, then the compressors' and the indexer's.
        weights = [
            blueprint.weight(f"{prefix}.attn_q_a.weight"),
            blueprint.weight(f"{prefix}.attn_kv.weight"),
        ]
        if not self.sliding:
            compressor = Compressor(blueprint, f"{prefix}.attn_compressor", index=False)
            weights += compressor.weights
        if layer.attention is AttentionKind.SPARSE:
            indexer = Indexer(blueprint, prefix, layer)
            weights += (*indexer.compressor.weights, indexer.proj)
        inputs = Projections(tuple(weights), rounded=2, simulate=simulate)
        q_column, kv_column, *others = inputs.columns

        queries = Queries(
            column=q_column,
            norm=blueprint.vector(f"{prefix}.attn_q_a_norm.weight"),
            q_b=blueprint.weight(f"{prefix}.attn_q_b.weight"),
            heads=c.heads,
            dim=c.head_dim,
            index_q_b=None if indexer is None else indexer.q_b,
            index_heads=c.index_heads,
            index_dim=c.index_dim,
            eps=c.rms_eps,
            simulate=simulate,
        )
        kv_norm = blueprint.vector(f"{prefix}.attn_kv_a_norm.weight")
        self.part = parts.Attention(
            inputs=inputs,
            queries=queries,
            keys=Keys(kv_column, kv_norm, c.rms_eps, simulate),
            compression=None if compressor is None else compressor.part(others[0], others[1]),
            index_compression=None if indexer is None else indexer.compressor.part(others[2], others[3]),
            choice=None if indexer is None else indexer.part(others[4]),
            sight=Sight(c.window, layer.ratio, blueprint.vector(f"{prefix}.attn_sinks.weight")),
            output=Output(
                out_a=blueprint.weight(f"{prefix}.attn_output_a.weight"),
                out_b=blueprint.weight(f"{prefix}.attn_output_b.weight"),
                groups=c.o_groups,
                simulate=simulate,
            ),
        )
        self.kv_alone = Projections((weights[1],), rounded=1, simulate=simulate)  # see `remember`
        self.keys_alone = Keys(0, kv_norm, c.rms_eps, simulate)

    def rotation(self, batch: Batch) -> Rotation:
        return batch.plain if self.sliding else batch.compressed

    def forward(self, x: Tensor, batch: Batch, states: list[LayerRows]) -> Tensor:
        """x [rows, hidden] → [rows, hidden]; states: this layer's, one per segment."""
        return self.ops.attention(x, self.part, self.rotation(batch), batch.segments, states)

    def remember(self, x: Tensor, batch: Batch, states: list[LayerRows]) -> None:
        """The part of `forward` that fills the window of a sliding layer."""
        projected = self.ops.project(x, self.kv_alone)
        for segment, state in zip(batch.segments, states, strict=True):
            self.ops.remember(projected, self.keys_alone, self.rotation(batch), segment, state.window)
            state.window.trim()
