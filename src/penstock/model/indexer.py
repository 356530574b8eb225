"""The lightning indexer: a small attention of its own that decides which compressed rows a token may read."""

from torch import Tensor

from penstock.model.batch import Batch, Segment
from penstock.model.blueprint import Blueprint
from penstock.model.compressor import Compressor
from penstock.model.state import CompressorState
from penstock.weights.config import LayerConfig


class Indexer:
    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        config = blueprint.config
        self.ops, self.precision = blueprint.ops, blueprint.precision
        self.heads, self.dim, self.topk = config.index_heads, config.index_dim, config.index_topk
        self.q_b = blueprint.weight(f"{prefix}.indexer.attn_q_b.weight")
        self.proj = blueprint.weight(f"{prefix}.indexer.proj.weight")
        self.compressor = Compressor(blueprint, f"{prefix}.indexer_compressor", layer)

    def queries(self, x: Tensor, qr: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Index queries [rows, heads, dim] and the weight of each head [rows, heads], which may be negative."""
        q = self.ops.linear(self.precision.linear_input(qr), self.q_b).unflatten(-1, (self.heads, self.dim))
        q = self.precision.index(self.ops.rotate(q, *batch.compressed))
        return q, self.ops.linear(x, self.proj) * (self.dim * self.heads) ** -0.5

    def push(self, projected: Tensor, segment: Segment, state: CompressorState) -> None:
        first, rows = self.compressor.push(projected, segment, state)
        state.rows.write(first, self.precision.index(rows))

    def select(self, q: Tensor, gates: Tensor, visible: Tensor, state: CompressorState) -> Tensor:
        """Rows chosen for each token of a segment → [count, ≤ topk]"""
        rows = state.rows.view(int(visible.max()))
        return self.ops.select(q, gates, rows, visible, self.topk)
