"""One DeepSeek-V4 block."""

from torch import Tensor

from penstock.model.attention import Attention
from penstock.model.batch import Batch
from penstock.model.blueprint import Blueprint
from penstock.model.hyper import HyperMix
from penstock.model.moe import MoE
from penstock.model.state import LayerState
from penstock.weights.config import LayerConfig


class Layer:
    """Two sublayers around the hyper-connection streams.  streams: [rows, n, hidden]"""

    def __init__(self, blueprint: Blueprint, prefix: str, layer: LayerConfig):
        self.ops, self.eps = blueprint.ops, blueprint.config.rms_eps
        self.attn_mix = HyperMix(blueprint, f"{prefix}.hc_attn")
        self.attn_norm = blueprint.vector(f"{prefix}.attn_norm.weight")
        self.attention = Attention(blueprint, prefix, layer)
        self.ffn_mix = HyperMix(blueprint, f"{prefix}.hc_ffn")
        self.ffn_norm = blueprint.vector(f"{prefix}.ffn_norm.weight")
        self.moe = MoE(blueprint, prefix, layer)

    def forward(self, streams: Tensor, batch: Batch, states: list[LayerState]) -> Tensor:
        x, mix = self.attn_mix.collapse(streams)  # [rows, hidden]
        y = self.attention.forward(self.ops.rms_norm(x, self.attn_norm, self.eps), batch, states)
        streams = self.attn_mix.expand(y, streams, mix)
        x, mix = self.ffn_mix.collapse(streams)
        y = self.moe.forward(self.ops.rms_norm(x, self.ffn_norm, self.eps), batch.tokens)
        return self.ffn_mix.expand(y, streams, mix)

    def remember(self, streams: Tensor, batch: Batch, states: list[LayerState]) -> None:
        """Only fills the window, as if `forward` had run: a block's window depends on its input alone."""
        x, _ = self.attn_mix.collapse(streams)
        kv = self.attention.kv_rows(self.ops.rms_norm(x, self.attn_norm, self.eps), batch)
        for segment, state in zip(batch.segments, states, strict=True):
            state.window.stage(segment.position, kv[segment.rows])
