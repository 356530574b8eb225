"""The larger ops: every step of a layer in one native call.

A part's weights are described to the native code once and the description is kept with the part.  Where a weight
has a type that must be decoded first, or low precision is to be simulated, the small ops do the same one by one.
"""

from ctypes import Structure, addressof, c_void_p
from sys import getrefcount
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from penstock.kernels import composed, parts
from penstock.kernels.cpu import parallel, structs
from penstock.kernels.cpu.attention import KINDS
from penstock.kernels.cpu.hyper import MAX_STREAMS
from penstock.kernels.cpu.library import expect, floats, native, pointer
from penstock.kernels.cpu.stored import stored_weight
from penstock.kernels.parts import AllRows, RecentRows, Rotation, Span
from penstock.weights.tensor import Weight

if TYPE_CHECKING:
    from penstock.kernels.ops import SmallOps

MAX_PROJECTIONS = 16  # what projections.cpp has room for


def _count_of_unused() -> int:
    """What `getrefcount` says in `Ready.result` of a tensor that only the list there holds."""
    results = [object()]
    found = results[0]
    return getrefcount(found)


UNUSED: Final = _count_of_unused()


class Ready:
    """A description for the native code: where it lies (0: there is none), and what must live as long as it does.

    Also the memory of single-row results.  It is used again once nobody else holds the tensor, because making one
    takes longer than much of what happens in it.
    """

    __slots__ = ("address", "half", "kept", "results")

    def __init__(self, address: int, kept: object = None, half: int = 0):
        self.address, self.kept = address, kept
        self.half = half  # rotated pairs it is for, where that matters
        self.results: list[Tensor | None] = [None, None]

    def result(self, number: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory for a result; of a part's results with one row each number has its own."""
        if shape[0] != 1:
            return torch.empty(shape, dtype=dtype)
        found = self.results[number]
        if found is None or getrefcount(found) > UNUSED:
            found = self.results[number] = torch.empty(shape, dtype=dtype)
        return found


NOT_NATIVE = Ready(0)


def _ops() -> "SmallOps":
    from penstock.kernels import cpu  # the module that has all of them, this one included

    return cpu


def _ready(structure: Structure, *kept: object, half: int = 0) -> Ready:
    return Ready(addressof(structure), (structure, *kept), half)


def _places(*weights: Weight) -> list[int] | None:
    """Addresses of the weights' descriptions; None if one of them must be decoded first."""
    stored = [stored_weight(weight) for weight in weights]
    return None if None in stored else [addressof(weight) for weight in stored if weight is not None]


def _at(x: Tensor, what: str) -> int:
    """Address of a contiguous float32 tensor on the CPU."""
    if x.dtype is not torch.float32 or not x.is_contiguous() or not x.is_cpu:
        raise ValueError(f"{what}: expected contiguous float32 on cpu, found {x.dtype} {list(x.shape)}")
    return x.data_ptr()


# ── hyper-connections ─────────────────────────────────────────────────────────────────────────────────────────


def _prepare_hyper(part: parts.Hyper) -> Ready:
    base, scale, norm = floats(part.base, "base"), floats(part.scale, "scale"), floats(part.norm, "norm")
    n, width, hidden = part.streams, (2 + part.streams) * part.streams, norm.numel()
    expect(
        0 < n <= MAX_STREAMS
        and tuple(part.fn.shape) == (width, n * hidden)
        and base.numel() == width
        and scale.numel() == 3,
        f"{part.fn.info.name}: {list(part.fn.shape)} does not fit {n} streams of {hidden}",
    )
    places = _places(part.fn)
    part.prepared = NOT_NATIVE
    if places is not None:
        vectors = (base.data_ptr(), scale.data_ptr(), norm.data_ptr())
        structure = structs.Hyper(*places, *vectors, n, hidden, part.iterations, part.eps, part.rms_eps)
        part.prepared = _ready(structure, base, scale, norm)
    return part.prepared  # type: ignore[no-any-return]


def hyper_enter(streams: Tensor, part: parts.Hyper) -> tuple[Tensor, Tensor]:
    ready: Ready = part.prepared or _prepare_hyper(part)
    if not ready.address:
        return composed.hyper_enter(_ops(), streams, part)
    at = _at(streams, "streams")
    rows, n, hidden = streams.shape
    if not (n == part.streams and hidden == part.norm.shape[0]):
        raise ValueError(f"hyper_enter: streams {list(streams.shape)}")
    x, mix = ready.result(0, rows, hidden), ready.result(1, rows, (2 + n) * n)
    native().ps_hyper_enter(ready.address, at, rows, x.data_ptr(), mix.data_ptr(), parallel.threads())
    return x, mix


def hyper_leave(y: Tensor, streams: Tensor, mix: Tensor) -> None:
    rows, n, hidden = streams.shape
    if not (
        tuple(y.shape) == (rows, hidden) and tuple(mix.shape) == (rows, (2 + n) * n) and n <= MAX_STREAMS
    ):
        raise ValueError(
            f"hyper_leave: output {list(y.shape)} and mix {list(mix.shape)} for streams {list(streams.shape)}"
        )
    native().ps_hyper_leave(
        *(_at(y, "output"), _at(streams, "streams"), _at(mix, "mix"), rows, n, hidden, parallel.threads())
    )


# ── projections ───────────────────────────────────────────────────────────────────────────────────────────────


def _prepare_projections(part: parts.Projections) -> Ready:
    columns = {weight.shape[1] for weight in part.weights}
    expect(
        len(columns) == 1 and len(part.weights) <= MAX_PROJECTIONS,
        f"project: {len(part.weights)} weights with {sorted(columns)} columns",
    )
    places = None if part.simulate else _places(*part.weights)
    part.prepared = NOT_NATIVE
    if places is not None:
        array = (c_void_p * len(places))(*places)
        part.prepared = _ready(structs.Projections(addressof(array), len(places), part.width), array)
    return part.prepared  # type: ignore[no-any-return]


def project(x: Tensor, part: parts.Projections) -> Tensor:
    ready: Ready = part.prepared or _prepare_projections(part)
    if not ready.address:
        return composed.project(_ops(), x, part)
    at = _at(x, "project")
    rows, columns = x.shape
    if not (columns == part.weights[0].shape[1]):
        raise ValueError(f"project: input {list(x.shape)}")
    out = ready.result(0, rows, part.width)
    native().ps_project(ready.address, at, rows, out.data_ptr(), parallel.threads())
    return out


def _prepare_queries(part: parts.Queries, half: int) -> Ready:
    norm = floats(part.norm, "norm")
    rank = norm.numel()
    weights = [part.q_b] if part.index_q_b is None else [part.q_b, part.index_q_b]
    shapes = [(part.heads * part.dim, rank), (part.index_heads * part.index_dim, rank)]
    for weight, shape in zip(weights, shapes, strict=False):
        expect(tuple(weight.shape) == shape, f"{weight.info.name}: {list(weight.shape)}, expected {shape}")
    expect(
        2 * half <= part.dim and (part.index_q_b is None or 2 * half <= part.index_dim),
        f"queries: {half} pairs in heads of {part.dim} and {part.index_dim}",
    )
    places = None if part.simulate else _places(*weights)
    part.prepared = NOT_NATIVE
    if places is not None:
        places = [*places, 0][:2]
        sizes = (part.column, rank, part.heads, part.dim, part.index_heads, part.index_dim, half)
        part.prepared = _ready(structs.Queries(*places, norm.data_ptr(), *sizes, part.eps), norm, half=half)
    return part.prepared  # type: ignore[no-any-return]


def queries(projected: Tensor, part: parts.Queries, rotation: Rotation) -> tuple[Tensor, Tensor | None]:
    cos, sin = rotation
    ready: Ready = part.prepared or _prepare_queries(part, cos.shape[1])
    if not ready.address:
        return composed.queries(_ops(), projected, part, rotation)
    at = _at(projected, "projections")
    rows, width = projected.shape
    if not (cos.shape == sin.shape == (rows, ready.half) and part.column + part.norm.shape[0] <= width):
        raise ValueError(f"queries: projections {list(projected.shape)}, rotation {list(cos.shape)}")
    q = ready.result(0, rows, part.heads, part.dim)
    index_q = None
    if part.index_q_b is not None:
        index_q = ready.result(1, rows, part.index_heads, part.index_dim)
    native().ps_queries_of(
        *(ready.address, at, width, _at(cos, "cos"), _at(sin, "sin"), rows),
        *(q.data_ptr(), pointer(index_q), parallel.threads()),
    )
    return q, index_q


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────


def _ring(rows: RecentRows) -> int:
    ready: Ready | None = rows.prepared
    if ready is None:
        capacity, width = rows.storage.shape
        kind = KINDS[rows.storage.dtype]
        ready = rows.prepared = _ready(structs.Ring(rows.storage.data_ptr(), capacity, width, kind))
    return ready.address


def _prepare_keys(part: parts.Keys, half: int) -> Ready:
    norm = floats(part.norm, "norm")
    expect(2 * half <= norm.numel(), f"remember: {half} pairs in rows of {norm.numel()}")
    part.prepared = NOT_NATIVE
    if not part.simulate:
        structure = structs.Keys(norm.data_ptr(), part.column, norm.numel(), half, part.eps)
        part.prepared = _ready(structure, norm, half=half)
    return part.prepared  # type: ignore[no-any-return]


def remember(projected: Tensor, part: parts.Keys, rotation: Rotation, span: Span, window: RecentRows) -> None:
    cos, sin = rotation
    half = cos.shape[1]
    ready: Ready = part.prepared or _prepare_keys(part, half)
    if not ready.address:
        composed.remember(_ops(), projected, part, rotation, span, window)
        return
    rows, width = projected.shape
    start, position = span.start, span.position
    count = span.stop - start
    if not (
        start >= 0
        and count >= 0
        and span.stop <= rows
        and cos.shape == sin.shape == (rows, ready.half)
        and window.storage.shape[1] == part.norm.shape[0] <= width - part.column
    ):
        raise ValueError(
            f"remember: rows {start} to {span.stop} of {list(projected.shape)} for {list(window.storage.shape)}"
        )
    fresh = window.open(position, count)
    native().ps_keys_of(
        *(ready.address, _at(projected, "projections") + 4 * start * width, width),
        *(_at(cos, "cos") + 4 * start * half, _at(sin, "sin") + 4 * start * half, count),
        *(_ring(window), pointer(fresh), position, parallel.threads()),
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
        part.prepared = _ready(structure, ape, norm, speed)
    return part.prepared  # type: ignore[no-any-return]


def compress(
    projected: Tensor, part: parts.Compression, span: Span, frontier: RecentRows, rows: AllRows
) -> None:
    place = (part.prepared or _prepare_compression(part)).address
    if not place:
        composed.compress(_ops(), projected, part, span, frontier, rows)
        return
    total, stride = projected.shape
    start, position = span.start, span.position
    count = span.stop - start
    ratio, width = part.ape.shape
    capacity = frontier.storage.shape[0]
    limit, dim = rows.storage.shape
    if not (
        start >= 0
        and count >= 0
        and span.stop <= total
        and max(part.value_column, part.score_column) + width <= stride
        and frontier.storage.shape[1] == 2 * width
        and dim == part.norm.shape[0]
        and (position + count) // ratio <= limit
    ):
        raise ValueError(
            f"compress: rows {start} to {span.stop} of {list(projected.shape)} from position {position} on"
        )
    kept = min(count, capacity)
    fresh = frontier.open(position + count - kept, kept)
    native().ps_compress(
        *(place, _at(projected, "projections") + 4 * start * stride, stride, count, position),
        *(_ring(frontier), pointer(fresh), kept),
        *(rows.storage.data_ptr(), KINDS[rows.storage.dtype], parallel.threads()),
    )


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────


def choose(
    index_q: Tensor, projected: Tensor, part: parts.Choice, span: Span, rows: AllRows
) -> Tensor | None:
    start, position = span.start, span.position
    count = span.stop - start
    available = (position + count) // part.ratio
    if available <= part.count:
        return None
    total, heads, dim = index_q.shape
    width = projected.shape[1]
    storage = rows.storage
    if not (
        0 <= start <= span.stop <= total == projected.shape[0]
        and part.column + heads <= width
        and storage.shape[1] == dim
        and available <= storage.shape[0]
    ):
        raise ValueError(
            f"choose: queries {list(index_q.shape)}, projections {list(projected.shape)}, rows {list(storage.shape)}"
        )
    picks = torch.empty(count, part.count, dtype=torch.long)
    task = structs.Index(
        _at(index_q, "index queries") + 4 * start * heads * dim,
        _at(projected, "projections") + 4 * (start * width + part.column),
        *(width, count, heads, dim),
        *(storage.data_ptr(), dim, KINDS[storage.dtype], available),
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
    part.prepared = _ready(structure, sinks, half=half)
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
    half = cos.shape[1]
    ready: Ready = part.prepared or _prepare_sight(part, heads, dim, half)
    start, position = span.start, span.position
    count = span.stop - start
    if not (
        0 <= start <= span.stop <= total
        and cos.shape == sin.shape == (total, ready.half)
        and window.storage.shape[1] == dim
        and heads == part.sinks.shape[0]
    ):
        raise ValueError(
            f"look: queries {list(q.shape)}, window {list(window.storage.shape)}, rows {start} to {span.stop}"
        )
    storage, kind, available, width = None, 0, 0, 0
    if rows is not None and (available := (position + count) // part.ratio):
        storage, kind = rows.storage.data_ptr(), KINDS[rows.storage.dtype]
        if not (rows.storage.shape[1] == dim and available <= rows.storage.shape[0]):
            raise ValueError(f"look: {available} rows of {dim} in {list(rows.storage.shape)}")
    if picks is not None:
        width = picks.shape[1]
        if not (picks.shape[0] == count and picks.is_contiguous()):
            raise ValueError(f"look: picks {list(picks.shape)}")
    at = _at(q, "queries") + 4 * start * heads * dim
    call = structs.AttentionCall(
        *(at, count, position, _ring(window), pointer(window.fresh)),
        *(storage, dim, kind, available, None, pointer(picks), width),
        *(_at(cos, "cos") + 4 * start * half, _at(sin, "sin") + 4 * start * half, at),
    )
    native().ps_attend(ready.address, addressof(call), parallel.threads())


def _prepare_output(part: parts.Output) -> Ready:
    a, b = part.out_a.shape, part.out_b.shape
    expect(
        a[0] % part.groups == 0 and b[1] == a[0], f"{part.out_a.info.name}: {list(a)} in {part.groups} groups"
    )
    places = None if part.simulate else _places(part.out_a, part.out_b)
    part.prepared = NOT_NATIVE if places is None else _ready(structs.Output(*places, part.groups))
    return part.prepared  # type: ignore[no-any-return]


def output(heads: Tensor, part: parts.Output) -> Tensor:
    ready: Ready = part.prepared or _prepare_output(part)
    if not ready.address:
        return composed.output(_ops(), heads, part)
    rows = heads.shape[0]
    if not (heads.numel() == rows * part.groups * part.out_a.shape[1]):
        raise ValueError(f"output: heads' results {list(heads.shape)}")
    out = ready.result(0, rows, part.out_b.shape[0])
    native().ps_output_of(ready.address, _at(heads, "heads"), rows, out.data_ptr(), parallel.threads())
    return out


# ── routing ───────────────────────────────────────────────────────────────────────────────────────────────────


def _prepare_routing(part: parts.Routing) -> Ready:
    experts = part.gate.shape[0]
    bias = None if part.bias is None else floats(part.bias, "bias")
    table = None if part.table is None else part.table.to(torch.long).contiguous()
    expect(
        0 < part.count <= experts
        and (bias is None or bias.numel() == experts)
        and (
            table is None
            or (
                table.shape[1] == part.count
                and bool(table.numel() == 0 or (table.min() >= 0) & (table.max() < experts))
            )
        ),
        f"{part.gate.info.name}: {part.count} of {experts} experts",
    )
    places = _places(part.gate)
    part.prepared = NOT_NATIVE
    if places is not None:
        choice = (pointer(bias), pointer(table), part.count, part.normalize)
        part.prepared = _ready(structs.Router(*places, *choice, part.scale), bias, table)
    return part.prepared  # type: ignore[no-any-return]


def choose_experts(x: Tensor, tokens: Tensor, part: parts.Routing) -> tuple[Tensor, Tensor]:
    ready: Ready = part.prepared or _prepare_routing(part)
    if not ready.address:
        return composed.choose_experts(_ops(), x, tokens, part)
    at = _at(x, "router input")
    rows, hidden = x.shape
    if not (
        tokens.dtype is torch.long
        and tokens.is_contiguous()
        and tokens.shape[0] == rows
        and hidden == part.gate.shape[1]
    ):
        raise ValueError(f"choose_experts: input {list(x.shape)}, tokens {tokens.dtype} {list(tokens.shape)}")
    ids = ready.result(0, rows, part.count, dtype=torch.long)
    weights = ready.result(1, rows, part.count)
    native().ps_router_of(
        ready.address, at, tokens.data_ptr(), rows, ids.data_ptr(), weights.data_ptr(), parallel.threads()
    )
    return ids, weights
