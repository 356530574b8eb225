"""Sizes of the pocket model, and what a training batch is."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from torch import Tensor

ALIGN: Final = 128  # documents start at multiples of this: the window, and the longest compression ratio


@dataclass(frozen=True)
class PocketConfig:
    """Sizes of the shipped model.  Everything is smaller than Flash, nothing is left out."""

    vocab: int = 4096
    hidden: int = 256
    ratios: tuple[int, ...] = (0, 4, 128, 4, 128, 4, 128, 4)
    hash_layers: int = 2
    heads: int = 4
    head_dim: int = 128
    rope_dim: int = 32
    q_rank: int = 128
    o_groups: int = 2
    o_rank: int = 128
    window: int = 128
    experts: int = 16
    experts_used: int = 2
    expert_width: int = 128
    routed_scale: float = 1.5
    swiglu_limit: float = 10.0
    index_heads: int = 8
    index_dim: int = 64
    index_topk: int = 64
    streams: int = 4
    sinkhorn: int = 20
    hc_eps: float = 1e-6
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    compress_theta: float = 160000.0
    yarn_factor: float = 4.0
    yarn_context: int = 2048
    context: int = 32_768  # trained on a quarter of it; `benchmarks.long_context` says what it does beyond


class Batch(NamedTuple):
    """[rows, length] each; `document` numbers documents within a row, padding has its own numbers."""

    tokens: Tensor
    document: Tensor
    position: Tensor  # within the document
    weight: Tensor  # how much predicting this token counts
