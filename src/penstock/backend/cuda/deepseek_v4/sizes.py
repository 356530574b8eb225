"""How many rows a step may have, and how much of a card's memory it takes."""

from collections.abc import Sequence
from typing import Final

from penstock.backend.cuda.attention import Attention
from penstock.backend.cuda.experts_many import parts_floats
from penstock.backend.cuda.placed import experts_are_fast
from penstock.backend.cuda.prefill_attention import DIM, INDEX_DIM, INDEX_HEADS
from penstock.backend.cuda.prefill_hyper import MAX_HIDDEN, STREAMS
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import AttentionKind, ModelConfig
from penstock.weights.tensor import TensorInfo

STEP_ROWS: Final = 32  # of a step that graphs are recorded for
LONG_ROWS: Final = 8192  # of a long one
FEATURE_ROWS: Final = 1024  # of a long one, whose features a DSpark module projects at a time
SCORE_BYTES: Final = 1 << 29  # of the indexer's scores in a long one, at a time
_STAGED: Final = 1 << 28  # what is copied of sequences' rings, and small things


def takes_long_steps(config: ModelConfig, kv_dtype: str, experts: Sequence[Sequence[TensorInfo]]) -> bool:
    """Whether the kernels for many rows take this shape; the others take every shape, a few rows at a time."""
    indexed = any(layer.attention is AttentionKind.SPARSE for layer in config.layers)
    return (
        kv_dtype == "f16"
        and config.head_dim == DIM
        and (config.heads * DIM // config.o_groups) % 256 == 0
        and config.streams == STREAMS
        and config.hidden <= MAX_HIDDEN
        and (not indexed or (config.index_heads, config.index_dim) == (INDEX_HEADS, INDEX_DIM))
        and experts_are_fast(experts, config.experts_used)
    )


def step_bytes(checkpoint: Checkpoint, rows: int) -> int:
    """What ops keep for steps of up to so many rows."""
    short = _short_bytes(checkpoint, min(rows, STEP_ROWS))
    return short if rows <= STEP_ROWS else short + _long_bytes(checkpoint, rows)


def _long_bytes(checkpoint: Checkpoint, rows: int) -> int:
    """An upper bound of what `LongMemory` holds."""
    c = checkpoint.config
    widest = max((c.compressed_width(layer, c.head_dim) for layer in c.layers if layer.ratio), default=0)
    width, heads = max(layer.expert_width for layer in c.layers), c.heads * c.head_dim
    floats = (
        c.streams * c.hidden + 5 * c.hidden
    )  # streams, embeddings, outputs of both sublayers, the shared expert
    floats += c.q_rank + 2 * c.head_dim + 4 * widest + c.index_heads * (c.index_dim + 1) + c.index_topk
    floats += c.o_groups * c.o_rank + c.experts + c.experts_used * (c.hidden + 8) + 512
    halves = (
        2 * (c.hidden + c.q_rank + c.o_groups * c.o_rank)
        + 2 * heads
        + c.head_dim
        + (c.experts_used + 1) * width
    )
    if checkpoint.has_mtp:  # streams before every row, normed, beside embeddings, in halves and joined
        floats += 10 * c.streams * c.hidden
    features = feature_width(checkpoint)
    if features:  # of a DSpark module: floats of all rows, and halves of those that are projected at a time
        floats, halves = floats + features + c.hidden, halves + 2 * c.hidden
    projected = 4 * features * min(rows, FEATURE_ROWS)
    return rows * (4 * floats + 2 * halves) + projected + SCORE_BYTES + _STAGED


def _short_bytes(checkpoint: Checkpoint, rows: int) -> int:
    """An upper bound of what `Workspace` holds, all row counts included."""
    c = checkpoint.config
    floats = 8 * c.streams * c.hidden + 64 * c.hidden  # streams of steps, head and draft; outputs, images
    floats += 2 * (c.q_rank + c.head_dim) + 4 * c.heads * c.head_dim  # queries, heads and their images
    floats += 8 * c.o_groups * c.o_rank + Attention.apart_floats(c.heads)
    scored = 0
    for layer in c.layers:
        if layer.attention is AttentionKind.SPARSE:
            scored = max(scored, c.context_length // layer.ratio)
    widest = max((c.compressed_width(layer, c.head_dim) for layer in c.layers if layer.ratio), default=0)
    floats += 4 * widest + 2 * c.index_heads * c.index_dim + c.index_topk + scored
    width = max(layer.expert_width for layer in c.layers)
    floats += 4 * c.experts + 6 * (c.experts_used + 1) * width + parts_floats(c.hidden, width, c.experts_used)
    floats += feature_width(checkpoint) + 2 * c.hidden  # what a DSpark module sees of the trunk
    return 4 * (rows * floats + 33 * c.vocab_size) + (64 << 20)


def feature_width(checkpoint: Checkpoint) -> int:
    """Numbers that a DSpark module sees of a token; 0 without one."""
    return checkpoint.index["mtp.0.main_proj.weight"].shape[1] if checkpoint.has_dspark else 0
