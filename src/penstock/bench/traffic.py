"""How many bytes of weights and of attention state one decoded token has to read."""

from collections import Counter
from enum import StrEnum

from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import AttentionKind, LayerConfig, ModelConfig
from penstock.weights.layout import Role
from penstock.weights.summary import roles


class Part(StrEnum):
    """What time and bytes are counted by."""

    EMBEDDING = "embedding"
    MIXING = "mixing"
    ATTENTION = "attention"
    ROUTER = "router"
    EXPERTS = "experts"  # routed and shared: one native call computes both
    HEAD = "head"
    DRAFT = "draft block"
    OTHER = "other"


PART_OF = {
    Role.EMBEDDING: Part.EMBEDDING,
    Role.HEAD: Part.HEAD,
    Role.ATTENTION: Part.ATTENTION,
    Role.COMPRESSOR: Part.ATTENTION,
    Role.INDEXER: Part.ATTENTION,
    Role.ROUTER: Part.ROUTER,
    Role.HASH_TABLE: Part.ROUTER,
    Role.ROUTED: Part.EXPERTS,
    Role.SHARED: Part.EXPERTS,
    Role.MIXING: Part.MIXING,
    Role.NORM: Part.OTHER,
    Role.DRAFT: Part.DRAFT,
}
# With every token the draft block keeps its window up to date: it joins streams and token and makes one kv row.
DRAFT_READS = ("eh_proj", "e_proj", "h_proj", "enorm", "hnorm", "hc_attn_", "attn_norm", "attn_kv")


def weight_bytes(model: Checkpoint) -> Counter[Part]:
    """Bytes of weights that one token reads, by part: one row of each table, the chosen experts, all the rest."""
    config = model.config
    result: Counter[Part] = Counter()
    for name, role in roles(model).items():
        part, share = PART_OF[role], 1.0
        if role in (Role.EMBEDDING, Role.HASH_TABLE):
            share = 1 / config.vocab_size
        elif role is Role.ROUTED:
            share = config.experts_used / config.experts
        if name.startswith("mtp."):
            part = Part.DRAFT
            if not name.split(".", 2)[2].startswith(DRAFT_READS):
                continue
        result[part] += round(model.index[name].total_bytes * share)
    return result


def state_bytes(config: ModelConfig, position: int, value_bytes: int) -> int:
    """Bytes of attention state that the token at `position` reads, in all layers."""
    return sum(_layer_state(config, layer, position) for layer in config.layers) * value_bytes


def _layer_state(config: ModelConfig, layer: LayerConfig, position: int) -> int:
    """Values: the window, and beyond it every compressed row, or the index of all and the picked ones."""
    values = min(position + 1, config.window) * config.head_dim
    if layer.attention is AttentionKind.SLIDING:
        return values
    rows = (position + 1) // layer.ratio
    if layer.attention is AttentionKind.SPARSE:
        return values + rows * config.index_dim + min(rows, config.index_topk) * config.head_dim
    return values + rows * config.head_dim
