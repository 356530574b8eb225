"""Attention over a sliding window and compressed rows, the pooling that makes those rows, and the indexer that
chooses among them.  Queries go in blocks so that scratch stays bounded at any context length."""

from typing import Final

import torch
from torch import Tensor

SCRATCH: Final = 1 << 24  # float32 values of scratch per block of queries


def attend(
    q: Tensor,
    window: Tensor,
    window_size: int,
    sinks: Tensor,
    rows: Tensor | None,
    visible: Tensor | None,
    picks: Tensor | None,
) -> Tensor:
    total, heads, dim = q.shape
    earlier = window.shape[0] - total
    compressed = 0 if rows is None else picks.shape[1] if picks is not None else rows.shape[0]
    per_query = heads * (window_size + compressed) + (compressed * dim if picks is not None else 0)
    block = max(1, min(64, SCRATCH // per_query))
    out = torch.empty_like(q)
    for a in range(0, total, block):
        b = min(total, a + block)
        low = max(0, earlier + a - window_size + 1)
        keys = window[low : earlier + b].float()  # [K, dim]
        key, query = torch.arange(low, earlier + b), torch.arange(earlier + a, earlier + b).unsqueeze(1)
        seen = (key <= query) & (key > query - window_size)  # [b - a, K]
        scores = torch.einsum("thd,kd->thk", q[a:b], keys)
        hidden = [~seen]
        parts = [scores]
        values: Tensor | None = None
        if compressed and rows is not None and visible is not None:
            if picks is not None:
                chosen = picks[a:b]
                values = rows[chosen.clamp(min=0)].float()  # [b - a, k, dim]
                parts.append(torch.einsum("thd,tkd->thk", q[a:b], values))
                hidden.append(chosen < 0)
            else:
                values = rows.float()  # [R, dim]
                parts.append(torch.einsum("thd,rd->thr", q[a:b], values))
                hidden.append(torch.arange(compressed) >= visible[a:b].unsqueeze(1))
        logits = torch.cat(parts, dim=-1) * dim**-0.5
        logits = logits.masked_fill(torch.cat(hidden, dim=-1).unsqueeze(1), -torch.inf)
        sink = sinks.view(1, heads, 1).expand(b - a, heads, 1)
        weights = torch.softmax(torch.cat((logits, sink), dim=-1), dim=-1)  # the sink has no value vector
        split = keys.shape[0]
        result = torch.einsum("thk,kd->thd", weights[..., :split], keys)
        if values is not None:
            tail = weights[..., split:-1]
            result += torch.einsum("thk,tkd->thd" if picks is not None else "thk,kd->thd", tail, values)
        out[a:b] = result
    return out


def pool(values: Tensor, scores: Tensor) -> Tensor:
    return (torch.softmax(scores, dim=1) * values).sum(1)


def select(q: Tensor, gates: Tensor, rows: Tensor, visible: Tensor, count: int) -> Tensor:
    total, heads, _ = q.shape
    available = rows.shape[0]
    order = torch.arange(available)
    if available <= count:  # everything visible is chosen: no scores needed
        return torch.where(order < visible.unsqueeze(1), order, -1)
    keys = rows.float()
    block = max(1, SCRATCH // (heads * available))
    picks = torch.empty(total, count, dtype=torch.long)
    for a in range(0, total, block):
        b = min(total, a + block)
        hits = torch.relu(torch.einsum("thd,rd->thr", q[a:b], keys))
        scores = torch.einsum("th,thr->tr", gates[a:b], hits)
        scores = scores.masked_fill(order >= visible[a:b].unsqueeze(1), -torch.inf)
        best = torch.sort(scores, dim=-1, descending=True, stable=True)  # stable: ties to the lower row
        kept = best.values[:, :count] > -torch.inf
        chosen = torch.where(kept, best.indices[:, :count], available).sort(dim=-1).values
        picks[a:b] = torch.where(chosen < available, chosen, -1)
    return picks
