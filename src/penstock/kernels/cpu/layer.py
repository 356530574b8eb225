"""The steps of a layer that need no memory, each in one native call.

A part's weights are described to the native code once and the description is kept with the part.  Where a weight
has a type that must be decoded first, or low precision is to be simulated, the small ops do the same one by one.
"""

from ctypes import addressof, c_void_p
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from penstock.kernels import composed, parts
from penstock.kernels.cpu import parallel, structs
from penstock.kernels.cpu.hyper import MAX_STREAMS
from penstock.kernels.cpu.library import expect, floats, native, pointer
from penstock.kernels.cpu.ready import NOT_NATIVE, Ready, at, described, places_of
from penstock.kernels.parts import Rotation

if TYPE_CHECKING:
    from penstock.kernels.ops import Ops

MAX_PROJECTIONS: Final = 16  # what projections.cpp has room for


def _ops() -> "Ops":
    from penstock.kernels import cpu  # the module that has all of them, this one included

    return cpu


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
    places = places_of(part.fn)
    part.prepared = NOT_NATIVE
    if places is not None:
        vectors = (base.data_ptr(), scale.data_ptr(), norm.data_ptr())
        structure = structs.Hyper(*places, *vectors, n, hidden, part.iterations, part.eps, part.rms_eps)
        part.prepared = described(structure, base, scale, norm)
    return part.prepared  # type: ignore[no-any-return]


def hyper_enter(streams: Tensor, part: parts.Hyper) -> tuple[Tensor, Tensor]:
    ready: Ready = part.prepared or _prepare_hyper(part)
    if not ready.address:
        return composed.hyper_enter(_ops(), streams, part)
    return _enter(None, None, streams, part, ready)


def hyper_between(y: Tensor, streams: Tensor, mix: Tensor, part: parts.Hyper) -> tuple[Tensor, Tensor]:
    ready: Ready = part.prepared or _prepare_hyper(part)
    if not ready.address:
        return composed.hyper_between(_ops(), y, streams, mix, part)
    _expect_output(y, streams, mix)
    return _enter(at(y, "output"), at(mix, "mix"), streams, part, ready)


def _enter(
    y: int | None, before: int | None, streams: Tensor, part: parts.Hyper, ready: Ready
) -> tuple[Tensor, Tensor]:
    where = at(streams, "streams")
    rows, n, hidden = streams.shape
    if not (n == part.streams and hidden == part.norm.shape[0]):
        raise ValueError(f"hyper_enter: streams {list(streams.shape)}")
    x, mix = ready.result(0, rows, hidden), ready.result(1, rows, (2 + n) * n)
    native().ps_hyper_enter(
        ready.address, y, before, where, rows, x.data_ptr(), mix.data_ptr(), parallel.threads()
    )
    return x, mix


def hyper_leave(y: Tensor, streams: Tensor, mix: Tensor) -> None:
    _expect_output(y, streams, mix)
    rows, n, hidden = streams.shape
    native().ps_hyper_leave(
        *(at(y, "output"), at(streams, "streams"), at(mix, "mix"), rows, n, hidden, parallel.threads())
    )


def _expect_output(y: Tensor, streams: Tensor, mix: Tensor) -> None:
    rows, n, hidden = streams.shape
    if not (y.shape == (rows, hidden) and mix.shape == (rows, (2 + n) * n) and n <= MAX_STREAMS):
        raise ValueError(
            f"hyper_leave: output {list(y.shape)} and mix {list(mix.shape)} for streams {list(streams.shape)}"
        )


# ── projections ───────────────────────────────────────────────────────────────────────────────────────────────


def _prepare_projections(part: parts.Projections) -> Ready:
    columns = {weight.shape[1] for weight in part.weights}
    expect(
        len(columns) == 1 and len(part.weights) <= MAX_PROJECTIONS,
        f"project: {len(part.weights)} weights with {sorted(columns)} columns",
    )
    places = None if part.simulate else places_of(*part.weights)
    part.prepared = NOT_NATIVE
    if places is not None:
        array = (c_void_p * len(places))(*places)
        part.prepared = described(structs.Projections(addressof(array), len(places), part.width), array)
    return part.prepared  # type: ignore[no-any-return]


def project(x: Tensor, part: parts.Projections) -> Tensor:
    ready: Ready = part.prepared or _prepare_projections(part)
    if not ready.address:
        return composed.project(_ops(), x, part)
    where = at(x, "project")
    rows, columns = x.shape
    if not (columns == part.weights[0].shape[1]):
        raise ValueError(f"project: input {list(x.shape)}")
    out = ready.result(0, rows, part.width)
    native().ps_project(ready.address, where, rows, out.data_ptr(), parallel.threads())
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
    places = None if part.simulate else places_of(*weights)
    part.prepared = NOT_NATIVE
    if places is not None:
        places = [*places, 0][:2]
        sizes = (part.column, rank, part.heads, part.dim, part.index_heads, part.index_dim, half)
        part.prepared = described(
            structs.Queries(*places, norm.data_ptr(), *sizes, part.eps), norm, half=half
        )
    return part.prepared  # type: ignore[no-any-return]


def queries(projected: Tensor, part: parts.Queries, rotation: Rotation) -> tuple[Tensor, Tensor | None]:
    cos, sin = rotation
    ready: Ready = part.prepared or _prepare_queries(part, cos.shape[1])
    if not ready.address:
        return composed.queries(_ops(), projected, part, rotation)
    where = at(projected, "projections")
    rows, width = projected.shape
    if not (cos.numel() == sin.numel() == rows * ready.half and part.column + part.norm.shape[0] <= width):
        raise ValueError(f"queries: projections {list(projected.shape)}, rotation {list(cos.shape)}")
    q = ready.result(0, rows, part.heads, part.dim)
    index_q = None
    if part.index_q_b is not None:
        index_q = ready.result(1, rows, part.index_heads, part.index_dim)
    native().ps_queries_of(
        *(ready.address, where, width, at(cos, "cos"), at(sin, "sin"), rows),
        *(q.data_ptr(), pointer(index_q), parallel.threads()),
    )
    return q, index_q


# ── the way out ───────────────────────────────────────────────────────────────────────────────────────────────


def _prepare_output(part: parts.Output) -> Ready:
    a, b = part.out_a.shape, part.out_b.shape
    expect(
        a[0] % part.groups == 0 and b[1] == a[0], f"{part.out_a.info.name}: {list(a)} in {part.groups} groups"
    )
    places = None if part.simulate else places_of(part.out_a, part.out_b)
    part.prepared = NOT_NATIVE if places is None else described(structs.Output(*places, part.groups))
    return part.prepared  # type: ignore[no-any-return]


def output(heads: Tensor, part: parts.Output) -> Tensor:
    ready: Ready = part.prepared or _prepare_output(part)
    if not ready.address:
        return composed.output(_ops(), heads, part)
    rows = heads.shape[0]
    if not (heads.numel() == rows * part.groups * part.out_a.shape[1]):
        raise ValueError(f"output: heads' results {list(heads.shape)}")
    out = ready.result(0, rows, part.out_b.shape[0])
    native().ps_output_of(ready.address, at(heads, "heads"), rows, out.data_ptr(), parallel.threads())
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
    places = places_of(part.gate)
    part.prepared = NOT_NATIVE
    if places is not None:
        choice = (pointer(bias), pointer(table), part.count, part.normalize)
        part.prepared = described(structs.Router(*places, *choice, part.scale), bias, table)
    return part.prepared  # type: ignore[no-any-return]


def choose_experts(x: Tensor, tokens: Tensor, part: parts.Routing) -> tuple[Tensor, Tensor]:
    ready: Ready = part.prepared or _prepare_routing(part)
    if not ready.address:
        return composed.choose_experts(_ops(), x, tokens, part)
    where = at(x, "router input")
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
        ready.address, where, tokens.data_ptr(), rows, ids.data_ptr(), weights.data_ptr(), parallel.threads()
    )
    return ids, weights
