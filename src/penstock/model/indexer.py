"""The lightning indexer: a small attention of its own that decides which compressed rows a token may read."""

from penstock.kernels.parts import Choice
from penstock.model.blueprint import Blueprint
from penstock.model.compressor import Compressor
from penstock.weights.config import LayerConfig


class Indexer:
    """score of a row = Σ over heads of weight · max(0, query · row); the highest scores win.

    Weights may be negative.  Their common factor is left out: being positive, it changes no choice.
    """

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        self.ratio, self.topk = layer.ratio, blueprint.config.index_topk
        self.q_b = blueprint.weight(f"{prefix}.indexer.attn_q_b.weight")
        self.proj = blueprint.weight(f"{prefix}.indexer.proj.weight")
        self.compressor = Compressor(blueprint, f"{prefix}.indexer_compressor", index=True)

    def part(self, column: int) -> Choice:
        """For kernels, who are told where the layer's projections have the weights of the heads."""
        return Choice(column, self.ratio, self.topk)
