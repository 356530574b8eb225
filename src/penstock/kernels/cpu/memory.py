"""The steps of a layer that read and fill a sequence's memory, each in one native call; see `layer`."""

from ctypes import addressof
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from penstock.kernels import composed, parts
from penstock.kernels.cpu import parallel, structs
from penstock.kernels.cpu.library import expect, floats, native, pointer
from penstock.kernels.cpu.ready import NOT_NATIVE, Ready, at, described, place_of
from penstock.kernels.parts import AllRows, RecentRows, Rotation, Span

if TYPE_CHECKING:
    from penstock.kernels.ops import SmallOps


def _ops() -> "SmallOps":
    from penstock.kernels import cpu  # the module that has all of them, this one included

    return cpu


def _prepare_keys(part: parts.Keys, half: int) -> Ready:
    norm = floats(part.norm, "norm")
    expect(2 * half <= norm.numel(), f"remember: {half} pairs in rows of {norm.numel()}")
    part.prepared = NOT_NATIVE
    if not part.simulate:
        structure = structs.Keys(norm.data_ptr(), part.column, norm.numel(), half, part.eps)
        part.prepared = described(structure, norm, half=half, dim=norm.numel())
    return part.prepared  # type: ignore[no-any-return]


def remember(projected: Tensor, part: parts.Keys, rotation: Rotation, span: Span, window: RecentRows) -> None:
    cos, sin = rotation
    ready: Ready = part.prepared or _prepare_keys(part, cos.shape[1])
    if not ready.address:
        composed.remember(_ops(), projected, part, rotation, span, window)
        return
    place, half = place_of(window), ready.half
    rows, width = projected.shape
    start, stop, position = span.start, span.stop, span.position
    if not (
        0 <= start <= stop <= rows
        and position >= 0
        and cos.numel() == sin.numel() == rows * half
        and place.width == ready.dim <= width - part.column
    ):
        raise ValueError(
            f"remember: rows {start} to {stop} of {list(projected.shape)} for {list(window.storage.shape)}"
        )
    fresh = window.open(position, stop - start)
    skip = 4 * start * half
    native().ps_keys_of(
        ready.address,
        at(projected, "projections") + 4 * start * width,
        width,
        at(cos, "cos") + skip,
        at(sin, "sin") + skip,
        stop - start,
        place.address,
        pointer(fresh),
        position,
        parallel.threads(),
    )


def _prepare_compression(part: parts.Compression) -> Ready:
    ape, norm, speed = floats(part.ape, "ape"), floats(part.norm, "norm"), floats(part.speed, "speed")
    (ratio, width), dim, half = ape.shape, norm.numel(), speed.numel()
    expect(
        width in (dim, 2 * dim) and 2 * half <= dim and ratio > 0,
        f"compress: ape {list(ape.shape)}, rows of {dim}, {half} pairs",
    )
    part.prepared = NOT_NATIVE
    if not part.simulate:
        columns = (part.value_column, part.score_column)
        vectors = (ape.data_ptr(), norm.data_ptr(), speed.data_ptr())
        structure = structs.Compressor(*vectors, *columns, width, dim, half, ratio, part.eps)
        part.prepared = described(structure, ape, norm, speed, dim=dim, width=width, ratio=ratio)
    return part.prepared  # type: ignore[no-any-return]


def compress(
    projected: Tensor, part: parts.Compression, span: Span, frontier: RecentRows, rows: AllRows
) -> None:
    ready: Ready = part.prepared or _prepare_compression(part)
    if not ready.address:
        composed.compress(_ops(), projected, part, span, frontier, rows)
        return
    waiting, finished = place_of(frontier), place_of(rows)
    total, stride = projected.shape
    start, stop, position = span.start, span.stop, span.position
    count = stop - start
    if not (
        0 <= start <= stop <= total
        and position >= 0
        and part.value_column + ready.width <= stride
        and part.score_column + ready.width <= stride
        and waiting.width == 2 * ready.width
        and finished.width == ready.dim
        and (position + count) // ready.ratio <= finished.count
    ):
        raise ValueError(
            f"compress: rows {start} to {stop} of {list(projected.shape)} from position {position} on"
        )
    kept = count if count < waiting.count else waiting.count
    fresh = frontier.open(position + count - kept, kept)
    native().ps_compress(
        ready.address,
        at(projected, "projections") + 4 * start * stride,
        stride,
        count,
        position,
        waiting.address,
        pointer(fresh),
        kept,
        finished.data,
        finished.kind,
        parallel.threads(),
    )


def choose(
    index_q: Tensor, projected: Tensor, part: parts.Choice, span: Span, rows: AllRows
) -> Tensor | None:
    start, stop, position = span.start, span.stop, span.position
    count = stop - start
    available = (position + count) // part.ratio
    if available <= part.count:
        return None
    place = place_of(rows)
    total, heads, dim = index_q.shape
    others, width = projected.shape
    if not (
        0 <= start <= stop <= total == others
        and position >= 0
        and part.column + heads <= width
        and place.width == dim
        and available <= place.count
    ):
        raise ValueError(
            f"choose: queries {list(index_q.shape)}, projections {list(projected.shape)}, "
            f"{place.count} rows of {place.width}"
        )
    picks = torch.empty(count, part.count, dtype=torch.long)
    task = structs.Index(
        at(index_q, "index queries") + 4 * start * heads * dim,
        at(projected, "projections") + 4 * (start * width + part.column),
        *(width, count, heads, dim),
        *(place.data, dim, place.kind, available),
        *(None, position, part.ratio, part.count, part.count, picks.data_ptr()),
    )
    native().ps_select(addressof(task), parallel.threads())
    return picks


def _prepare_sight(part: parts.Sight, heads: int, dim: int, half: int) -> Ready:
    sinks = floats(part.sinks, "sinks")
    expect(
        sinks.numel() == heads and 2 * half <= dim and part.window > 0,
        f"look: {sinks.numel()} sinks for {heads} heads of {dim}, {half} pairs, window of {part.window}",
    )
    structure = structs.Attention(sinks.data_ptr(), heads, dim, part.window, max(1, part.ratio), half)
    part.prepared = described(structure, sinks, half=half, dim=dim, width=heads)
    return part.prepared  # type: ignore[no-any-return]


def look(
    q: Tensor,
    part: parts.Sight,
    rotation: Rotation,
    span: Span,
    window: RecentRows,
    rows: AllRows | None,
    picks: Tensor | None,
) -> None:
    cos, sin = rotation
    total, heads, dim = q.shape
    ready: Ready = part.prepared or _prepare_sight(part, heads, dim, cos.shape[1])
    place, half = place_of(window), ready.half
    start, stop, position = span.start, span.stop, span.position
    count = stop - start
    if not (
        0 <= start <= stop <= total
        and position >= 0
        and cos.numel() == sin.numel() == total * half
        and place.width == dim == ready.dim
        and heads == ready.width
    ):
        raise ValueError(
            f"look: queries {list(q.shape)}, window {list(window.storage.shape)}, rows {start} to {stop}"
        )
    data, kind, available, width = None, 0, 0, 0
    if rows is not None and (available := (position + count) // part.ratio):
        compressed = place_of(rows)
        data, kind = compressed.data, compressed.kind
        if not (compressed.width == dim and available <= compressed.count):
            raise ValueError(f"look: {available} rows of {dim} in {list(rows.storage.shape)}")
    if picks is not None:
        width = picks.shape[1]
        if not (picks.shape[0] == count and picks.is_contiguous()):
            raise ValueError(f"look: picks {list(picks.shape)}")
    queries = at(q, "queries") + 4 * start * heads * dim
    skip = 4 * start * half
    call = structs.AttentionCall(
        *(queries, count, position, place.address, pointer(window.fresh), position),
        *(data, dim, kind, available, None, pointer(picks), width),
        *(at(cos, "cos") + skip, at(sin, "sin") + skip, queries),  # results take the queries' place
    )
    native().ps_attend(ready.address, addressof(call), parallel.threads())
