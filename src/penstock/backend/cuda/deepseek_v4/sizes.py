"""How much of a card's memory a step takes."""

from penstock.backend.cuda.attention import SPLITS
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import AttentionKind


def step_bytes(checkpoint: Checkpoint, rows: int) -> int:
    """What ops keep for a step of so many rows: an upper bound of what `Workspace` holds, all row counts included."""
    c = checkpoint.config
    floats = 8 * c.streams * c.hidden + 64 * c.hidden  # streams of steps, head and draft; outputs, images
    floats += 2 * (c.q_rank + c.head_dim) + 4 * c.heads * c.head_dim  # queries, heads and their images
    floats += 8 * c.o_groups * c.o_rank
    scored = 0
    for layer in c.layers:
        if layer.attention is AttentionKind.SPARSE:
            scored = max(scored, c.context_length // layer.ratio)
    widest = max((c.compressed_width(layer, c.head_dim) for layer in c.layers if layer.ratio), default=0)
    floats += 4 * widest + 2 * c.index_heads * c.index_dim + c.index_topk + scored
    width = max(layer.expert_width for layer in c.layers)
    floats += 4 * c.experts + 6 * (c.experts_used + 1) * width
    shares = 8 * SPLITS * c.heads * (c.head_dim + 2)
    return 4 * (rows * floats + 2 * shares + 32 * c.vocab_size) + (64 << 20)
