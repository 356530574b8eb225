"""One DeepSeek-V4 block."""

from torch import Tensor

from penstock.experts.store import ExpertStore
from penstock.kernels.ops import Ops
from penstock.model.attention import Attention
from penstock.model.batch import Batch
from penstock.model.hyper import HyperMix, vector
from penstock.model.moe import MoE
from penstock.model.precision import Precision
from penstock.model.rope import Frequencies
from penstock.model.state import LayerState
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import LayerConfig


class Layer:
    """Two sublayers around the hyper-connection streams.  streams: [rows, n, hidden]"""

    def __init__(
        self,
        checkpoint: Checkpoint,
        ops: Ops,
        prefix: str,
        layer: LayerConfig,
        compressed: Frequencies,
        experts: ExpertStore,
        precision: Precision,
    ):
        self.ops, self.eps = ops, checkpoint.config.rms_eps
        self.attn_mix = HyperMix(checkpoint, ops, f"{prefix}.hc_attn")
        self.attn_norm = vector(checkpoint, f"{prefix}.attn_norm.weight")
        self.attention = Attention(checkpoint, ops, prefix, layer, compressed, precision)
        self.ffn_mix = HyperMix(checkpoint, ops, f"{prefix}.hc_ffn")
        self.ffn_norm = vector(checkpoint, f"{prefix}.ffn_norm.weight")
        self.moe = MoE(checkpoint, ops, prefix, layer, experts, precision)

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
