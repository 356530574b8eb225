"""The lightning indexer: a small attention of its own that decides which compressed rows a token may read."""

from torch import Tensor

from penstock.kernels.parts import Choice, Span
from penstock.model.blueprint import Blueprint
from penstock.model.compressor import Compressor
from penstock.model.state import CompressorState
from penstock.weights.config import LayerConfig


class Indexer:
    """score of a row = Σ over heads of weight · max(0, query · row); the highest scores win.

    Weights may be negative.  Their common factor is left out: being positive, it changes no choice.
    """

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        self.ops, self.ratio, self.topk = blueprint.ops, layer.ratio, blueprint.config.index_topk
        self.q_b = blueprint.weight(f"{prefix}.indexer.attn_q_b.weight")
        self.proj = blueprint.weight(f"{prefix}.indexer.proj.weight")
        self.compressor = Compressor(blueprint, f"{prefix}.indexer_compressor", index=True)

    def read_from(self, column: int) -> None:
        """Where the layer's projections have the weights of the heads."""
        self.part = Choice(column, self.ratio, self.topk)

    def choose(self, q: Tensor, projected: Tensor, segment: Span, state: CompressorState) -> Tensor | None:
        """Rows for each token of a segment → [count, topk], or None: every row it can see"""
        return self.ops.choose(q, projected, self.part, segment, state.rows)
