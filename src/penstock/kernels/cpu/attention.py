"""Attention over a sliding window and compressed rows, the pooling that makes those rows, and the indexer that
chooses among them.  Cached rows are read where they lie, in their own type, and only those that are visible."""

import ctypes
from typing import Final

import torch
from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import Attention, Index, expect, floats, native

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
    task = Attention(
        q=q.data_ptr(),
        heads=heads,
        dim=dim,
        sinks=sinks.data_ptr(),
        window=window.data_ptr(),
        window_stride=window.stride(0),
        window_kind=KINDS[window.dtype],
        earlier=earlier,
        window_size=window_size,
        out=out.data_ptr(),
    )
    compressed = 0
    if rows is not None and visible is not None and rows.shape[0]:
        rows, visible = _cached(rows, dim, "rows"), _counts(visible, total)
        compressed = rows.shape[0]
        task.rows, task.rows_stride, task.rows_kind = rows.data_ptr(), rows.stride(0), KINDS[rows.dtype]
        task.row_count, task.visible = rows.shape[0], visible.data_ptr()
        if picks is not None:
            picks = picks.to(torch.long).contiguous()
            compressed = picks.shape[1]
            highest = int(picks.max()) if picks.numel() else -1
            expect(
                picks.shape[0] == total and highest < rows.shape[0],
                f"attend: picks {list(picks.shape)} up to {highest} for q {list(q.shape)}, rows {list(rows.shape)}",
            )
            task.picks, task.picks_width = picks.data_ptr(), picks.shape[1]

    work = 2 * total * heads * dim * (min(window_size, window.shape[0]) + compressed)
    threads = parallel.threads_for(work)
    pieces, parts = _grid(total, heads, threads)  # every part of a token's heads gathers its rows for itself
    kernel, scratch_size = native().ps_attend, native().ps_attend_scratch(heads, dim)

    def piece(number: int) -> None:
        index, part = divmod(number, parts)
        scratch = torch.empty(scratch_size)
        kernel(
            ctypes.byref(task),
            *(total * index // pieces, total * (index + 1) // pieces),
            *(heads * part // parts, heads * (part + 1) // parts),
            scratch.data_ptr(),
        )

    if total and heads and dim:
        parallel.each(pieces * parts, threads, piece)
    return out


def pool(values: Tensor, scores: Tensor) -> Tensor:
    values, scores = floats(values, "values"), floats(scores, "scores")
    expect(
        values.dim() == 3 and values.shape == scores.shape,
        f"pool: values {list(values.shape)} and scores {list(scores.shape)}",
    )
    n, candidates, dim = values.shape
    out = values.new_empty(n, dim)
    kernel = native().ps_pool

    def piece(start: int, stop: int) -> None:
        at = 4 * start * candidates * dim
        kernel(
            *(values.data_ptr() + at, scores.data_ptr() + at, stop - start, candidates, dim),
            out.data_ptr() + 4 * start * dim,
        )

    parallel.over_rows(n, 8 * values.numel(), piece)
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
    threads = parallel.threads_for(total * available * heads * dim)
    pieces, parts = _grid(total, available, threads)
    ranks = torch.empty(total, parts, count, dtype=torch.long)
    kernel, scratch_size = native().ps_select_rank, native().ps_select_scratch(heads, dim, count)

    def piece(number: int) -> None:
        index, part = divmod(number, parts)
        scratch = torch.empty(scratch_size, dtype=torch.long)
        kernel(
            ctypes.byref(task),
            *(total * index // pieces, total * (index + 1) // pieces, part, parts),
            *(ranks.data_ptr(), scratch.data_ptr()),
        )

    if width:
        if available > count:
            parallel.each(pieces * parts, threads, piece)
        native().ps_select_pick(ctypes.byref(task), total, parts, ranks.data_ptr())
    return picks


def _grid(tokens: int, width: int, threads: int) -> tuple[int, int]:
    """Into how many pieces the tokens are cut, and into how many parts (at most `width`) the work on each token.

    Where there are tokens enough for all threads, no token is divided."""
    if tokens >= threads:
        return (1 if threads == 1 else min(tokens, 4 * threads)), 1
    return tokens, max(1, min(width, threads))
