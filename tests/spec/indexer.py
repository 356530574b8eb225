"""The lightning indexer: which compressed rows a token sees."""

import torch
from torch import Tensor


def select(q: Tensor, gates: Tensor, rows: Tensor, seen: Tensor, topk: int) -> Tensor:
    """Of the rows [R, dim] that each token may see [T, R], the `topk` with the highest scores, ties to the lower row.
    q [T, heads, dim], gates [T, heads] → [T, R]"""
    hits = torch.relu(torch.einsum("thd,rd->thr", q, rows))
    scores = torch.einsum("th,thr->tr", gates, hits).masked_fill(~seen, -torch.inf)
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    best = torch.zeros_like(seen).scatter(1, order[:, :topk], torch.ones_like(seen))
    return best & seen
