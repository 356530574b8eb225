"""Which tensors a DeepSeek-V4 model has, with their shapes: the one table that loading, conversion, synthetic
models and `inspect` share."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from penstock.weights.config import AttentionKind, LayerConfig, ModelConfig

EXPERT_PARTS = ("gate", "up", "down")
_BLOCK = re.compile(r"^(blk|mtp)\.\d+\.")


class Role(StrEnum):
    """What a tensor is for; `inspect` counts bytes by it and mixes choose types by it."""

    EMBEDDING = "embedding"
    HEAD = "head"
    ATTENTION = "attention"
    COMPRESSOR = "compressor"
    INDEXER = "indexer"
    ROUTER = "router"
    HASH_TABLE = "hash table"
    ROUTED = "routed experts"
    SHARED = "shared expert"
    MIXING = "hyper-connections"
    NORM = "norms and biases"
    DRAFT = "draft projections"


class TensorPlan(NamedTuple):
    """A tensor that the model needs.  Shape [out, in], or [experts, out, in] for routed experts."""

    name: str
    shape: tuple[int, ...]
    role: Role

    @property
    def leaf(self) -> str:
        """What it is called within its block: `blk.3.indexer.attn_q_b.weight` is `indexer.attn_q_b`."""
        return _BLOCK.sub("", self.name).removesuffix(".weight")


def layer_tensors(
    config: ModelConfig, layer: LayerConfig, prefix: str, shared_width: int
) -> Iterator[TensorPlan]:
    """The tensors of one layer, named `prefix.LEAF`."""
    c, hidden, head = config, config.hidden, config.head_dim
    mixes = (2 + c.streams) * c.streams

    def plan(leaf: str, shape: tuple[int, ...], role: Role) -> TensorPlan:
        suffix = "" if leaf.endswith(".bias") else ".weight"
        return TensorPlan(f"{prefix}.{leaf}{suffix}", shape, role)

    for part in ("attn", "ffn"):
        yield plan(f"hc_{part}_fn", (mixes, c.streams * hidden), Role.MIXING)
        yield plan(f"hc_{part}_base", (mixes,), Role.MIXING)
        yield plan(f"hc_{part}_scale", (3,), Role.MIXING)
        yield plan(f"{part}_norm", (hidden,), Role.NORM)
    yield plan("attn_q_a", (c.q_rank, hidden), Role.ATTENTION)
    yield plan("attn_q_a_norm", (c.q_rank,), Role.NORM)
    yield plan("attn_q_b", (c.heads * head, c.q_rank), Role.ATTENTION)
    yield plan("attn_kv", (head, hidden), Role.ATTENTION)
    yield plan("attn_kv_a_norm", (head,), Role.NORM)
    yield plan("attn_sinks", (c.heads,), Role.NORM)
    yield plan("attn_output_a", (c.o_groups * c.o_rank, c.heads * head // c.o_groups), Role.ATTENTION)
    yield plan("attn_output_b", (hidden, c.o_groups * c.o_rank), Role.ATTENTION)

    if layer.attention is not AttentionKind.SLIDING:
        width = c.compressed_width(layer, head)
        yield plan("attn_compressor_kv", (width, hidden), Role.COMPRESSOR)
        yield plan("attn_compressor_gate", (width, hidden), Role.COMPRESSOR)
        yield plan("attn_compressor_ape", (layer.ratio, width), Role.COMPRESSOR)
        yield plan("attn_compressor_norm", (head,), Role.NORM)
    if layer.attention is AttentionKind.SPARSE:
        width = c.compressed_width(layer, c.index_dim)
        yield plan("indexer.attn_q_b", (c.index_heads * c.index_dim, c.q_rank), Role.INDEXER)
        yield plan("indexer.proj", (c.index_heads, hidden), Role.INDEXER)
        yield plan("indexer_compressor_kv", (width, hidden), Role.COMPRESSOR)
        yield plan("indexer_compressor_gate", (width, hidden), Role.COMPRESSOR)
        yield plan("indexer_compressor_ape", (layer.ratio, width), Role.COMPRESSOR)
        yield plan("indexer_compressor_norm", (c.index_dim,), Role.NORM)

    yield plan("ffn_gate_inp", (c.experts, hidden), Role.ROUTER)
    if layer.hashed:
        yield plan("ffn_gate_tid2eid", (c.vocab_size, c.experts_used), Role.HASH_TABLE)
    else:
        yield plan("exp_probs_b.bias", (c.experts,), Role.NORM)
    for part in EXPERT_PARTS:
        yield plan(f"ffn_{part}_exps", expert_shape(config, layer, part), Role.ROUTED)
    for part in EXPERT_PARTS:
        shape = (hidden, shared_width) if part == "down" else (shared_width, hidden)
        yield plan(f"ffn_{part}_shexp", shape, Role.SHARED)


def expert_shape(config: ModelConfig, layer: LayerConfig, part: str) -> tuple[int, int, int]:
    """[experts, out, in] of one of the three expert matrices."""
    if part == "down":
        return (config.experts, config.hidden, layer.expert_width)
    return (config.experts, layer.expert_width, config.hidden)


def root_tensors(config: ModelConfig) -> Iterator[TensorPlan]:
    """Embedding, output norm and head, and the mixing that collapses the streams before them."""
    streams, hidden = config.streams, config.hidden
    yield TensorPlan("token_embd.weight", (config.vocab_size, hidden), Role.EMBEDDING)
    yield TensorPlan("output_norm.weight", (hidden,), Role.NORM)
    yield TensorPlan("output.weight", (config.vocab_size, hidden), Role.HEAD)
    yield TensorPlan("output_hc_fn.weight", (streams, streams * hidden), Role.MIXING)
    yield TensorPlan("output_hc_base.weight", (streams,), Role.MIXING)
    yield TensorPlan("output_hc_scale.weight", (1,), Role.MIXING)


def draft_tensors(config: ModelConfig, fused: bool) -> Iterator[TensorPlan]:
    """What an MTP block has beyond a layer.  `fused`: one eh_proj instead of e_proj and h_proj."""
    hidden = config.hidden
    if fused:
        yield TensorPlan("mtp.0.eh_proj.weight", (hidden, 2 * hidden), Role.DRAFT)
    else:
        yield TensorPlan("mtp.0.e_proj.weight", (hidden, hidden), Role.DRAFT)
        yield TensorPlan("mtp.0.h_proj.weight", (hidden, hidden), Role.DRAFT)
    for leaf in ("enorm", "hnorm", "norm"):
        yield TensorPlan(f"mtp.0.{leaf}.weight", (hidden,), Role.NORM)
    yield from _draft_mixing(config, "mtp.0")


def _draft_mixing(config: ModelConfig, block: str) -> Iterator[TensorPlan]:
    streams = config.streams
    yield TensorPlan(f"{block}.hc_head_fn.weight", (streams, streams * config.hidden), Role.MIXING)
    yield TensorPlan(f"{block}.hc_head_base.weight", (streams,), Role.MIXING)
    yield TensorPlan(f"{block}.hc_head_scale.weight", (1,), Role.MIXING)


def dspark_tensors(config: ModelConfig, stages: int, features: int, rank: int) -> Iterator[TensorPlan]:
    """What a DSpark module has beyond its stages' layers.  features: layers of the trunk that it looks at; rank: of
    what the token before says of the next."""
    hidden, last = config.hidden, f"mtp.{stages - 1}"
    yield TensorPlan("mtp.0.main_proj.weight", (hidden, features * hidden), Role.DRAFT)
    yield TensorPlan("mtp.0.main_norm.weight", (hidden,), Role.NORM)
    yield TensorPlan(f"{last}.norm.weight", (hidden,), Role.NORM)
    yield from _draft_mixing(config, last)
    for leaf in ("markov_w1", "markov_w2"):
        yield TensorPlan(f"{last}.{leaf}.weight", (config.vocab_size, rank), Role.DRAFT)
    yield TensorPlan(f"{last}.conf_proj.weight", (1, hidden + rank), Role.DRAFT)
