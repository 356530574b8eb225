"""Attention over a sliding window and compressed rows, the pooling that makes those rows, and the indexer that
chooses among them.  Cached rows are read where they lie, in their own type, and only those that are visible."""

from ctypes import addressof
from typing import Final

import torch
from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import expect, floats, native
from penstock.kernels.cpu.structs import Attention, AttentionCall, Index, Ring

KINDS: Final = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # as in rows.h


def _cached(rows: Tensor, dim: int, what: str) -> Tensor:
    """Rows of a cache, [n, dim], in any type of KINDS; consecutive channels must be consecutive in memory."""
    expect(
        rows.dtype in KINDS and rows.device.type == "cpu" and rows.dim() == 2 and rows.shape[1] == dim,
        f"{what}: expected a float cache [n, {dim}] on cpu, found {rows.dtype} {list(rows.shape)}",
    )
    return rows if rows.stride(1) == 1 or dim <= 1 else rows.contiguous()


def _counts(visible: Tensor, total: int) -> Tensor:
    expect(tuple(visible.shape) == (total,), f"visible: expected [{total}], found {list(visible.shape)}")
    return visible.to(torch.long).contiguous()


def attend(
    q: Tensor,
    window: Tensor,
    window_size: int,
    sinks: Tensor,
    rows: Tensor | None,
    visible: Tensor | None,
    picks: Tensor | None,
) -> Tensor:
    q, sinks = floats(q, "queries"), floats(sinks, "sinks")
    total, heads, dim = q.shape
    window = _cached(window, dim, "window")
    earlier = window.shape[0] - total
    expect(
        earlier >= 0 and window_size > 0 and sinks.numel() == heads,
        f"attend: window {list(window.shape)} of {window_size} and sinks {list(sinks.shape)} for q {list(q.shape)}",
    )
    out = q.new_empty(q.shape)
    # A flat window is a ring that nothing has gone round in.
    ring = Ring(window.data_ptr(), window.shape[0], window.stride(0), KINDS[window.dtype])
    layer = Attention(sinks=sinks.data_ptr(), heads=heads, dim=dim, window_size=window_size, ratio=1, half=0)
    call = AttentionCall(
        q=q.data_ptr(), tokens=total, position=earlier, ring=addressof(ring), out=out.data_ptr()
    )
    if rows is not None and visible is not None and rows.shape[0]:
        rows, visible = _cached(rows, dim, "rows"), _counts(visible, total)
        call.rows, call.rows_stride, call.rows_kind = rows.data_ptr(), rows.stride(0), KINDS[rows.dtype]
        call.row_count, call.visible = rows.shape[0], visible.data_ptr()
        if picks is not None:
            picks = picks.to(torch.long).contiguous()
            highest = int(picks.max()) if picks.numel() else -1
            expect(
                picks.shape[0] == total and highest < rows.shape[0],
                f"attend: picks {list(picks.shape)} up to {highest} for q {list(q.shape)}, rows {list(rows.shape)}",
            )
            call.picks, call.picks_width = picks.data_ptr(), picks.shape[1]
    if dim:
        native().ps_attend(addressof(layer), addressof(call), parallel.threads())
    return out


def pool(values: Tensor, scores: Tensor) -> Tensor:
    values, scores = floats(values, "values"), floats(scores, "scores")
    expect(
        values.dim() == 3 and values.shape == scores.shape,
        f"pool: values {list(values.shape)} and scores {list(scores.shape)}",
    )
    n, candidates, dim = values.shape
    out = values.new_empty(n, dim)
    native().ps_pool(
        *(values.data_ptr(), scores.data_ptr(), n, candidates, dim, out.data_ptr(), parallel.threads())
    )
    return out


def select(q: Tensor, gates: Tensor, rows: Tensor, visible: Tensor, count: int) -> Tensor:
    q, gates = floats(q, "index queries"), floats(gates, "index gates")
    total, heads, dim = q.shape
    rows, visible = _cached(rows, dim, "index rows"), _counts(visible, total)
    available = rows.shape[0]
    expect(
        tuple(gates.shape) == (total, heads) and count >= 0,
        f"select: {count} by gates {list(gates.shape)} for q {list(q.shape)}",
    )
    width = min(count, available)
    picks = torch.empty(total, width, dtype=torch.long)
    task = Index(
        q=q.data_ptr(),
        gates=gates.data_ptr(),
        gates_stride=heads,
        tokens=total,
        heads=heads,
        dim=dim,
        rows=rows.data_ptr(),
        rows_stride=rows.stride(0),
        rows_kind=KINDS[rows.dtype],
        row_count=available,
        visible=visible.data_ptr(),
        count=count,
        width=width,
        picks=picks.data_ptr(),
    )
    native().ps_select(addressof(task), parallel.threads())
    return picks
