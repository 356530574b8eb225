"""How much memory a step takes."""

from ctypes import addressof

from penstock.backend.cpu.deepseek_v4.experts import FEW
from penstock.backend.cpu.weights import DECODED, KINDS
from penstock.native.library import native
from penstock.native.structs import StepSizes
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig


def step_bytes(checkpoint: Checkpoint, rows: int, threads: int) -> int:
    """What ops return, which lies in the workspace, and what kernels take while they run."""
    config = checkpoint.config
    terms = 4 * min(rows, FEW) * (config.experts_used + 1) * config.hidden
    return rows * _row_bytes(checkpoint) + terms + _native_bytes(checkpoint, rows, threads)


def _row_bytes(checkpoint: Checkpoint) -> int:
    """The arrays that `Workspace` keeps, per row."""
    c = checkpoint.config
    n, hidden = c.streams, c.hidden
    floats = n * hidden + (2 + n) * n  # streams, mix
    floats += (
        5 * hidden
    )  # embedded, inputs of a sublayer and of the head, outputs of attention and of experts
    floats += 4 * c.experts_used  # ids and weights, also guessed ones
    floats += 4 * (c.rope_dim // 2)  # rotations
    floats += c.head_dim  # new key/value rows
    if checkpoint.has_mtp:
        floats += (
            3 * n * hidden + 2 * n * hidden + 2 * hidden + c.head_dim
        )  # what joins streams and next tokens
    if checkpoint.has_dspark:  # features of the trunk, and what they become
        floats += checkpoint.index["mtp.0.main_proj.weight"].shape[1] + 2 * hidden + c.head_dim
    return 4 * floats


def _native_bytes(checkpoint: Checkpoint, rows: int, threads: int) -> int:
    c = checkpoint.config
    bits = 0
    for kind in {info.kind for info in checkpoint.index.values()}:
        bits |= native().ps_input_bits(KINDS.get(kind, DECODED))
    shared = [
        info.shape[0] for name, info in checkpoint.index.items() if name.endswith("ffn_gate_shexp.weight")
    ]
    sizes = StepSizes(
        hidden=c.hidden,
        streams=c.streams,
        projected_width=_projected_width(c),
        heads=c.heads,
        dim=c.head_dim,
        index_heads=c.index_heads,
        index_dim=c.index_dim,
        index_topk=c.index_topk,
        o_groups=c.o_groups,
        o_rank=c.o_rank,
        experts=c.experts,
        experts_used=c.experts_used,
        expert_width=max(layer.expert_width for layer in c.layers),
        shared_width=max(shared),
        ratio=max(layer.ratio for layer in c.layers),
        inputs=bits,
        low_precision=True,  # a little more, so that it need not be known here
    )
    return int(native().ps_step_bytes(addressof(sizes), rows, threads))


def _projected_width(c: ModelConfig) -> int:
    """Of all that reads a layer's input, in the layer with the most of it."""
    widest = 0
    for layer in c.layers:
        width = c.q_rank + c.head_dim
        if layer.ratio:
            width += 2 * c.compressed_width(layer, c.head_dim)
        if layer.attention == "sparse":
            width += 2 * c.compressed_width(layer, c.index_dim) + c.index_heads
        widest = max(widest, width)
    return widest
