"""The shapes that synthetic models come in: published DeepSeek-V4 sizes, and a tiny model that has every path."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.weights.config import LayerConfig, ModelConfig
from penstock.weights.config_gguf import RATIO_KINDS


@dataclass(frozen=True, slots=True)
class Width:
    """A family of models that differ only in their number of layers.

    `ratio_of` gives the compression ratio of a layer by its number, also past the published depth.
    """

    base: ModelConfig  # without layers
    layers: int
    hash_layers: int
    expert_width: int
    ratio_of: Callable[[int], int]

    def ratios(self, layers: int) -> list[int]:
        return [self.ratio_of(number) for number in range(layers)]

    def whole(self) -> ModelConfig:
        """The published model."""
        return self.config(self.ratios(self.layers), self.hash_layers, self.base.vocab_size)

    def config(self, ratios: Sequence[int], hash_layers: int, vocab: int) -> ModelConfig:
        """The model with one layer per entry of `ratios`, the first `hash_layers` of them hash-routed."""
        layers = tuple(
            LayerConfig(RATIO_KINDS[ratio], ratio, number < hash_layers, self.expert_width, 10.0, 10.0)
            for number, ratio in enumerate(ratios)
        )
        return replace(self.base, layers=layers, vocab_size=vocab)


def _alternating(first: Sequence[int]) -> Callable[[int], int]:
    """The published pattern: some layers of their own kind, then even layers sparse and odd ones heavy."""
    return lambda number: first[number] if number < len(first) else 128 if number % 2 else 4


FLASH: Final = ModelConfig(
    vocab_size=129280,
    hidden=4096,
    heads=64,
    head_dim=512,
    rope_dim=64,
    q_rank=1024,
    o_groups=8,
    o_rank=1024,
    window=128,
    context_length=1 << 20,
    rms_eps=1e-6,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    yarn_factor=16.0,
    yarn_original_context=65536,
    yarn_beta_fast=32.0,
    yarn_beta_slow=1.0,
    experts=256,
    experts_used=6,
    normalize_weights=True,
    routed_scale=1.5,
    index_heads=64,
    index_dim=128,
    index_topk=512,
    streams=4,
    sinkhorn_iterations=20,
    hc_eps=1e-6,
    bos_id=0,
    eos_ids=(1,),
    layers=(),
)

PRO: Final = replace(
    FLASH,
    hidden=7168,
    heads=128,
    q_rank=1536,
    o_groups=16,
    experts=384,
    routed_scale=2.5,
    index_topk=1024,
)

# Small enough for every test, with nothing left out: the window slides after 32 tokens, the indexer drops rows
# after 64, a heavy row appears at 128, and YaRN blends inside the rotary dimensions.  llama.cpp asks for an index
# dimension that is a multiple of 64 and not the head dimension; fewer than 12 index heads would tie at zero.
TINY: Final = replace(
    FLASH,
    vocab_size=512,
    hidden=256,
    heads=8,
    head_dim=128,
    rope_dim=32,
    q_rank=128,
    o_groups=2,
    o_rank=64,
    window=32,
    context_length=16384,
    yarn_original_context=1024,
    experts=16,
    experts_used=4,
    index_heads=16,
    index_dim=64,
    index_topk=16,
)

WIDTHS: Final[dict[str, Width]] = {
    "flash": Width(FLASH, 43, 3, 2048, _alternating([0, 0])),
    "pro": Width(PRO, 61, 3, 3072, _alternating([128, 128])),
    "tiny": Width(TINY, 6, 2, 256, _alternating([0, 4, 128, 4, 128])),
}
