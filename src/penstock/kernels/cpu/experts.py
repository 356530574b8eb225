"""Routing, and the experts themselves."""

from collections.abc import Mapping
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import expect, floats, native, pointer
from penstock.kernels.cpu.linear import linear, linears
from penstock.kernels.cpu.ready import at
from penstock.kernels.cpu.stored import ReadyExpert, ready_expert
from penstock.kernels.ops import Expert


def route(
    logits: Tensor, bias: Tensor | None, ids: Tensor | None, count: int, normalize: bool, scale: float
) -> tuple[Tensor, Tensor]:
    logits = floats(logits, "router logits")
    rows, experts = logits.shape
    if bias is not None:
        bias = floats(bias, "router bias")
        expect(bias.numel() == experts, f"route: {bias.numel()} biases for {experts} experts")
    if ids is not None:
        ids = ids.to(torch.long).contiguous()
        count = ids.shape[1]
        low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
        expect(
            ids.shape[0] == rows and low >= 0 and high < experts,
            f"route: ids {list(ids.shape)} from {low} to {high} for logits {list(logits.shape)}",
        )
    expect(count >= 0 and (ids is not None or count <= experts), f"route: {count} of {experts} experts")
    chosen = torch.empty(rows, count, dtype=torch.long)
    weights = logits.new_empty(rows, count)
    kernel = native().ps_route

    def piece(start: int, stop: int) -> None:
        scratch = torch.empty(2 * experts, dtype=torch.long)
        kernel(
            logits.data_ptr() + 4 * start * experts,
            pointer(bias),
            None if ids is None else ids.data_ptr() + 8 * start * count,
            *(stop - start, experts, count, normalize, scale),
            chosen.data_ptr() + 8 * start * count,
            weights.data_ptr() + 4 * start * count,
            scratch.data_ptr(),
        )

    parallel.over_rows(rows, 64 * logits.numel(), piece)
    return chosen, weights


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    gate, up = floats(gate, "gate"), floats(up, "up")
    expect(gate.shape == up.shape, f"swiglu: gate {list(gate.shape)} and up {list(up.shape)} differ")
    out = gate.new_empty(gate.shape)
    kernel = native().ps_swiglu

    def piece(start: int, stop: int) -> None:
        at = 4 * start
        kernel(gate.data_ptr() + at, up.data_ptr() + at, stop - start, limit, out.data_ptr() + at)

    parallel.over_rows(gate.numel(), 8 * gate.numel(), piece)
    return out


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    chosen: Mapping[int, Expert],
    limit: float,
    shared: Expert | None = None,
    shared_limit: float = 0.0,
) -> Tensor:
    inputs, gates = at(x, "experts input"), at(weights, "routing weights")
    if ids.dtype is not torch.long or not ids.is_contiguous():
        ids = ids.to(torch.long).contiguous()
    rows, slots = ids.shape
    hidden = x.shape[-1]
    if x.shape != (rows, hidden) or weights.shape != ids.shape:
        raise ValueError(
            f"experts: input {list(x.shape)}, ids {list(ids.shape)} and weights {list(weights.shape)} do not fit"
        )
    numbers = sorted(set(ids.view(-1).tolist()))
    last = None if shared is None else ready_expert(shared)
    width = -1
    places: list[int] = []
    for number in numbers:
        expert = chosen.get(number)
        if expert is None:
            raise ValueError(f"experts: expert {number} is routed to but not given")
        ready: ReadyExpert | None = expert.prepared or ready_expert(expert)
        if ready is None:
            return _one_by_one(x, ids, weights, chosen, limit, shared, shared_limit)
        if width < 0:
            width = ready.width
        if ready.width != width or ready.hidden != hidden:
            raise ValueError(
                f"experts: gates of {width} × {hidden} and {ready.width} × {ready.hidden} do not fit "
                f"each other or input {list(x.shape)}"
            )
        places.append(ready.address)
    if shared is not None:
        if last is None:
            return _one_by_one(x, ids, weights, chosen, limit, shared, shared_limit)
        if last.hidden != hidden:
            raise ValueError(
                f"experts: the shared one's {last.hidden} columns do not fit input {list(x.shape)}"
            )
    count = len(numbers)
    out = torch.empty_like(x)
    native().ps_experts(
        (c_void_p * count)(*places),
        (c_int64 * count)(*numbers),
        count,
        ids.data_ptr(),
        gates,
        slots,
        limit,
        None if last is None else last.address,
        shared_limit,
        inputs,
        rows,
        out.data_ptr(),
        parallel.threads(),
    )
    return out


def _one_by_one(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    chosen: Mapping[int, Expert],
    limit: float,
    shared: Expert | None,
    shared_limit: float,
) -> Tensor:
    """The same for types that have to be decoded first."""

    def run(rows: Tensor, expert: Expert, limit: float) -> Tensor:
        gate, up = linears(rows, (expert.gate, expert.up))
        return linear(swiglu(gate, up, limit), expert.down)

    out = torch.zeros_like(x)
    for number in torch.unique(ids).tolist():  # ascending
        rows, slots = torch.where(ids == number)
        out.index_add_(0, rows, run(x[rows], chosen[number], limit) * weights[rows, slots, None])
    return out if shared is None else out + run(x, shared, shared_limit)
