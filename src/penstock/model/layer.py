"""One DeepSeek-V4 block."""

from torch import Tensor

from penstock.kernels.parts import LayerRows
from penstock.model.attention import Attention
from penstock.model.batch import Batch
from penstock.model.blueprint import Blueprint
from penstock.model.hyper import HyperMix
from penstock.model.moe import MoE
from penstock.weights.config import LayerConfig


class Layer:
    """Two sublayers around the hyper-connection streams.  streams: [rows, n, hidden]"""

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        self.prefix = prefix
        self.attn_mix = HyperMix(blueprint, f"{prefix}.hc_attn", norm=f"{prefix}.attn_norm")
        self.attention = Attention(blueprint, prefix, layer)
        self.ffn_mix = HyperMix(blueprint, f"{prefix}.hc_ffn", norm=f"{prefix}.ffn_norm")
        self.moe = MoE(blueprint, prefix, layer)

    def forward(self, streams: Tensor, batch: Batch, states: list[LayerRows]) -> None:
        """Changes the streams in place.  states: this layer's, one per segment."""
        x, mix = self.attn_mix.enter(streams)  # [rows, hidden]
        x, mix = self.ffn_mix.between(self.attention.forward(x, batch, states), streams, mix)
        self.ffn_mix.leave(self.moe.forward(x, batch.tokens), streams, mix)

    def remember(self, streams: Tensor, batch: Batch, states: list[LayerRows]) -> None:
        """Only fills the window, as if `forward` had run: a sliding block's window depends on its input alone."""
        x, _ = self.attn_mix.enter(streams)
        self.attention.remember(x, batch, states)
