"""The larger ops, made of the small ones: their specification, and what runs where there is nothing faster."""

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.kernels.ops import Mix, Ops, SmallOps
from penstock.kernels.parts import (
    AllRows,
    Attention,
    Choice,
    Compression,
    Hyper,
    Keys,
    LayerRows,
    Output,
    Projections,
    Queries,
    RecentRows,
    Rotation,
    Routing,
    Sight,
    Span,
)


def hyper_enter(ops: SmallOps, streams: Tensor, part: Hyper) -> tuple[Tensor, Tensor]:
    flat = ops.rms_norm(streams.flatten(1), None, part.rms_eps)  # all streams as one vector
    mixes = ops.linear(flat, part.fn)
    mix = ops.hyper_mix(mixes, part.base, part.scale, part.streams, part.iterations, part.eps)
    x = ops.rms_norm(ops.hyper_collapse(streams, mix.pre), part.norm, part.rms_eps)
    return x, torch.cat((mix.pre, mix.post, mix.comb.flatten(1)), dim=-1)


def hyper_leave(ops: SmallOps, y: Tensor, streams: Tensor, mix: Tensor) -> None:
    n = streams.shape[1]
    pre, post, comb = mix.split([n, n, n * n], dim=-1)
    streams.copy_(ops.hyper_expand(y, streams, Mix(pre, post, comb.unflatten(-1, (n, n)))))


def hyper_between(ops: Ops, y: Tensor, streams: Tensor, mix: Tensor, part: Hyper) -> tuple[Tensor, Tensor]:
    ops.hyper_leave(y, streams, mix)
    return ops.hyper_enter(streams, part)


def project(ops: SmallOps, x: Tensor, part: Projections) -> Tensor:
    rounded = ops.round_fp8(x, 128) if part.simulate else x
    first, others = part.weights[: part.rounded], part.weights[part.rounded :]
    return torch.cat((*ops.linears(rounded, first), *ops.linears(x, others)), dim=-1)


def queries(
    ops: SmallOps, projected: Tensor, part: Queries, rotation: Rotation
) -> tuple[Tensor, Tensor | None]:
    low = projected[:, part.column : part.column + part.norm.shape[0]]
    low = ops.rms_norm(low, part.norm, part.eps)
    if part.simulate:
        low = ops.round_fp8(low, 128)
    q = ops.linear(low, part.q_b).unflatten(-1, (part.heads, part.dim))
    q = ops.rotate(ops.rms_norm(q, None, part.eps), *rotation)
    if part.index_q_b is None:
        return q, None
    index_q = ops.linear(low, part.index_q_b).unflatten(-1, (part.index_heads, part.index_dim))
    index_q = ops.rotate(index_q, *rotation)
    return q, ops.round_fp4(ops.hadamard(index_q), 32) if part.simulate else index_q


def remember(
    ops: SmallOps, projected: Tensor, part: Keys, rotation: Rotation, span: Span, window: RecentRows
) -> None:
    which = slice(span.start, span.stop)
    kv = projected[which, part.column : part.column + part.norm.shape[0]]
    kv = ops.rotate(ops.rms_norm(kv, part.norm, part.eps), rotation.cos[which], rotation.sin[which])
    if (fresh := window.open(span.position, span.stop - span.start)) is not None:
        fresh.copy_(_kv_rounded(ops, kv, rotation.cos.shape[1], part.simulate))
    else:
        window.write(span.position, _kv_rounded(ops, kv, rotation.cos.shape[1], part.simulate))


def _kv_rounded(ops: SmallOps, rows: Tensor, half: int, simulate: bool) -> Tensor:
    """Key/value rows keep their rotary channels and lose precision in the others."""
    plain = rows.shape[-1] - 2 * half
    if not simulate or plain == 0:
        return rows
    return torch.cat((ops.round_fp8(rows[..., :plain], 64), rows[..., plain:]), dim=-1)


def compress(
    ops: SmallOps, projected: Tensor, part: Compression, span: Span, frontier: RecentRows, rows: AllRows
) -> None:
    ratio, position = part.ratio, span.position
    count = span.stop - span.start
    width = part.ape.shape[1]
    own = projected[span.start : span.stop]
    places = torch.arange(position, position + count) % ratio
    values = own[:, part.value_column : part.value_column + width]
    scores = own[:, part.score_column : part.score_column + width] + part.ape[places]
    series = torch.cat((values, scores), dim=-1)
    first, windows = position // ratio, (position + count) // ratio - position // ratio
    back = ratio if part.overlap else 0  # overlapping windows reach into the one before
    begin = max(0, first * ratio - back)
    if windows:
        whole = torch.cat((frontier.read(begin, position), series))
        whole = whole[: (first + windows) * ratio - begin].unflatten(
            0, (-1, ratio)
        )  # [windows, ratio, 2 · width]
        values, scores = whole.chunk(2, dim=-1)
        if part.overlap:
            values = _overlapping(values, 0.0, windows)
            scores = _overlapping(scores, -torch.inf, windows)
        made = ops.rms_norm(ops.pool(values, scores), part.norm, part.eps)
        rotation = ops.angles(torch.arange(first, first + windows) * ratio, part.speed)
        made = ops.rotate(made, *rotation)
        if part.simulate and part.index:
            made = ops.round_fp4(ops.hadamard(made), 32)
        elif part.simulate:
            made = _kv_rounded(ops, made, part.speed.shape[0], simulate=True)
        rows.write(first, made)
    frontier.write(position, series)


def _overlapping(windows: Tensor, missing: float, count: int) -> Tensor:
    """[windows, ratio, 2 · dim] → candidates [count, 2 · ratio, dim]: the previous window's first series, then the
    current window's second."""
    before, current = windows.chunk(2, dim=-1)
    if windows.shape[0] == count:  # the very first window of a sequence has none before it
        before = torch.cat((torch.full_like(before[:1], missing), before))
    return torch.cat((before[:count], current[-count:]), dim=1)


def choose(
    ops: SmallOps, index_q: Tensor, projected: Tensor, part: Choice, span: Span, rows: AllRows
) -> Tensor | None:
    available = (span.position + span.stop - span.start) // part.ratio
    if available <= part.count:
        return None
    visible = (torch.arange(span.stop - span.start) + span.position + 1) // part.ratio
    gates = projected[span.start : span.stop, part.column : part.column + index_q.shape[1]]
    return ops.select(index_q[span.start : span.stop], gates, rows.view(available), visible, part.count)


def look(
    ops: SmallOps,
    q: Tensor,
    part: Sight,
    rotation: Rotation,
    span: Span,
    window: RecentRows,
    rows: AllRows | None,
    picks: Tensor | None,
) -> None:
    which, position = slice(span.start, span.stop), span.position
    end = position + span.stop - span.start
    raw = window.read(max(0, position - part.window + 1), end)
    compressed = visible = None
    if rows is not None:
        visible = (torch.arange(position, end) + 1) // part.ratio
        compressed = rows.view(end // part.ratio)
    heads = ops.attend(q[which], raw, part.window, part.sinks, compressed, visible, picks)
    q[which] = ops.rotate(heads, rotation.cos[which], rotation.sin[which], inverse=True)


def output(ops: SmallOps, heads: Tensor, part: Output) -> Tensor:
    middle = ops.grouped_linear(heads.reshape(heads.shape[0], part.groups, -1), part.out_a, part.groups)
    return ops.linear(ops.round_fp8(middle, 128) if part.simulate else middle, part.out_b)


def attention(
    ops: Ops,
    x: Tensor,
    part: Attention,
    rotation: Rotation,
    spans: Sequence[Span],
    states: Sequence[LayerRows],
) -> Tensor:
    projected = ops.project(x, part.inputs)
    q, index_q = ops.queries(projected, part.queries, rotation)  # [rows, heads, head_dim], normed and turned
    for span, state in zip(spans, states, strict=True):
        ops.remember(projected, part.keys, rotation, span, state.window)
        rows, picks = None, None
        if part.compression is not None:
            # Before attention: the token that completes a window already sees that window's row.
            assert state.compressor is not None
            rows = state.compressor.rows
            ops.compress(projected, part.compression, span, state.compressor.frontier, rows)
        if part.index_compression is not None:
            assert state.indexer is not None
            assert part.choice is not None
            assert index_q is not None
            index = state.indexer
            ops.compress(projected, part.index_compression, span, index.frontier, index.rows)
            picks = ops.choose(index_q, projected, part.choice, span, index.rows)
        ops.look(q, part.sight, rotation, span, state.window, rows, picks)
        state.window.trim()
    return ops.output(q, part.output)


def choose_experts(ops: SmallOps, x: Tensor, tokens: Tensor, part: Routing) -> tuple[Tensor, Tensor]:
    ids = None if part.table is None else part.table[tokens]
    return ops.route(ops.linear(x, part.gate), part.bias, ids, part.count, part.normalize, part.scale)
