"""Attention with nothing around it: what comes in are rows, what goes out is what a token sees of them."""

import numpy as np
import torch
from torch import Tensor

from penstock.backend.deepseek_v4 import AttentionSpec
from penstock.backend.state import DTYPES, Rows
from tests.backend.helpers import (
    KV_DTYPES,
    Weights,
)


def bare(weights: Weights, window: int, dim: int = 16) -> AttentionSpec:
    """One head.  Inputs are the key/value rows (but for their norm), queries are zero, results are the head's.  So a
    token gets the mean of what it sees."""
    return AttentionSpec(
        q_a=weights.of(torch.zeros(4, dim)),
        q_norm=np.ones(4, np.float32),
        q_b=weights.of(torch.zeros(dim, 4)),
        kv=weights.of(torch.eye(dim)),
        kv_norm=np.ones(dim, np.float32),
        sinks=np.full(1, -np.inf, np.float32),
        out_a=weights.of(torch.eye(dim)),
        out_b=weights.of(torch.eye(dim)),
        compressor=None,
        indexer=None,
        heads=1,
        dim=dim,
        window=window,
        groups=1,
        frequencies=np.zeros(1, np.float32),
        eps=1e-6,
    )


def stored(rows: Tensor, kv_dtype: str) -> Rows:
    """As a pool of states wants them."""
    return rows.to(KV_DTYPES[kv_dtype]).contiguous().view(torch.uint8).numpy().view(DTYPES[kv_dtype])
