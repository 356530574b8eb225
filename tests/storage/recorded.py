"""Traces for tests."""

from collections.abc import Sequence

import numpy as np

from penstock.storage.trace import Trace, TraceHeader


def make_trace(requests: Sequence[tuple[int, Sequence[int]]], sizes: Sequence[int], experts: int) -> Trace:
    """Requests of (block number, ids), one step each; sizes of experts by block."""
    starts = np.cumsum([0, *(len(ids) for _, ids in requests)])
    keys = np.array([block * experts + expert for block, ids in requests for expert in ids], np.int64)
    blocks = np.array([block for block, _ in requests], np.int64)
    header = TraceHeader("f1", {f"blk.{n}": size for n, size in enumerate(sizes)}, experts)
    return Trace(header, np.arange(len(requests)), blocks, np.ones_like(blocks), starts, keys)
