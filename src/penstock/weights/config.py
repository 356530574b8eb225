"""The hyper-parameters of a DeepSeek-V4 model: one frozen, validated value, whatever file it came from."""

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from penstock.errors import ModelFormatError

MAX_LAYERS: Final = 4096
MAX_DIMENSION: Final = 1 << 24  # vocabulary, widths, ranks
MAX_CONTEXT: Final = 1 << 31
SIZES: Final = (
    *("vocab_size", "hidden", "heads", "head_dim", "q_rank", "o_groups", "o_rank", "window"),
    *("experts", "experts_used", "streams", "index_heads", "index_dim", "index_topk"),
)


class AttentionKind(StrEnum):
    """What a layer sees besides its sliding window."""

    SLIDING = "sliding"  # nothing
    SPARSE = "sparse"  # compressed rows of overlapping windows, chosen by the indexer (CSA, ratio 4)
    HEAVY = "heavy"  # all compressed rows of long windows (HCA, ratio 128)


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """What differs from layer to layer."""

    attention: AttentionKind
    ratio: int  # tokens per compressed row; 0 for sliding layers
    hashed: bool  # experts looked up by token id instead of scored
    expert_width: int
    swiglu_limit: float
    shared_swiglu_limit: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """DeepSeek-V4 hyper-parameters.  Nothing here has a default: every value comes from the file."""

    vocab_size: int
    hidden: int
    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    o_groups: int
    o_rank: int
    window: int
    context_length: int
    rms_eps: float
    rope_theta: float
    compress_rope_theta: float
    yarn_factor: float  # 1.0: no YaRN
    yarn_original_context: int
    yarn_beta_fast: float
    yarn_beta_slow: float
    experts: int
    experts_used: int
    normalize_weights: bool
    routed_scale: float
    index_heads: int
    index_dim: int
    index_topk: int
    streams: int
    sinkhorn_iterations: int
    hc_eps: float
    bos_id: int | None
    eos_ids: tuple[int, ...]
    layers: tuple[LayerConfig, ...]

    @property
    def layer_count(self) -> int:
        return len(self.layers)

    @property
    def mtp_layer(self) -> LayerConfig:
        """The draft block's layer: sliding window, scored experts, the last layer's width and clamps."""
        last = self.layers[-1]
        return LayerConfig(
            AttentionKind.SLIDING, 0, False, last.expert_width, last.swiglu_limit, last.shared_swiglu_limit
        )

    def compressed_width(self, layer: LayerConfig, dim: int) -> int:
        """Width of the compressor projections: overlapping windows need two series."""
        return 2 * dim if layer.attention is AttentionKind.SPARSE else dim

    def validate(self, source: str) -> None:
        """Raises ModelFormatError naming the first value that cannot be."""

        def need(condition: bool, name: str, expected: str) -> None:
            if not condition:
                value = getattr(self, name)
                raise ModelFormatError(f"{source}: {name} is {value!r}, expected {expected}")

        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float):
                need(math.isfinite(value), field.name, "a finite number")
        for name in SIZES:
            need(1 <= getattr(self, name) <= MAX_DIMENSION, name, f"1 to {MAX_DIMENSION:,}")
        need(1 <= self.context_length <= MAX_CONTEXT, "context_length", f"1 to {MAX_CONTEXT:,}")
        need(0 <= self.rms_eps < 1, "rms_eps", "0 to 1")
        need(0 <= self.hc_eps < 1, "hc_eps", "0 to 1")
        for name in ("rope_theta", "compress_rope_theta"):
            need(getattr(self, name) > 1, name, "more than 1")
        for name in ("yarn_factor", "yarn_beta_fast", "yarn_beta_slow", "yarn_original_context"):
            need(getattr(self, name) > 0, name, "more than 0")
        need(0 <= self.rope_dim <= self.head_dim, "rope_dim", f"0 to head_dim ({self.head_dim})")
        need(self.rope_dim % 2 == 0, "rope_dim", "an even number")
        need(self.heads % self.o_groups == 0, "o_groups", f"a divisor of the {self.heads} heads")
        need(self.experts_used <= self.experts, "experts_used", f"at most experts ({self.experts})")
        need(1 <= self.sinkhorn_iterations <= 1000, "sinkhorn_iterations", "1 to 1000")
        need(1 <= len(self.layers) <= MAX_LAYERS, "layers", f"1 to {MAX_LAYERS} layers")
        for number, layer in enumerate(self.layers):
            self._validate_layer(layer, f"{source}: layer {number}")
        for token in (*self.eos_ids, *(() if self.bos_id is None else (self.bos_id,))):
            if not 0 <= token < self.vocab_size:
                raise ModelFormatError(f"{source}: BOS/EOS id {token} is outside the vocabulary")

    def _validate_layer(self, layer: LayerConfig, source: str) -> None:
        sliding = layer.attention is AttentionKind.SLIDING
        if (layer.ratio == 0) != sliding or not 0 <= layer.ratio <= 1 << 16:
            raise ModelFormatError(
                f"{source}: compression ratio {layer.ratio} for {layer.attention} attention"
            )
        if layer.attention is AttentionKind.SPARSE and self.rope_dim > self.index_dim:
            raise ModelFormatError(f"{source}: index_dim {self.index_dim} is below rope_dim {self.rope_dim}")
        if not 1 <= layer.expert_width <= MAX_DIMENSION:
            raise ModelFormatError(f"{source}: expert width {layer.expert_width}")
        for limit in (layer.swiglu_limit, layer.shared_swiglu_limit):
            if not limit > 0:  # also refuses NaN; infinity means no clamp
                raise ModelFormatError(f"{source}: SwiGLU limit {limit}, expected more than 0")
