"""Routing, and the experts themselves."""

from collections.abc import Mapping
from ctypes import c_int64, c_void_p
from typing import Any

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


class _Chosen:
    """The experts of a call in ascending order, as the native code sees them.  `native`: whether it can."""

    __slots__ = ("ids", "native", "numbers", "places", "shared")

    def __init__(
        self, x: Tensor, ids: Tensor, chosen: Mapping[int, Expert], shared: Expert | None, partial: bool
    ):
        if ids.dtype is not torch.long or not ids.is_contiguous():
            ids = ids.to(torch.long).contiguous()
        rows, hidden = ids.shape[0], x.shape[-1]
        if x.shape != (rows, hidden):
            raise ValueError(f"experts: input {list(x.shape)} and ids {list(ids.shape)} do not fit")
        self.ids, self.native = ids, True
        self.numbers: list[int] = sorted(chosen if partial else set(ids.view(-1).tolist()))
        self.places: list[int] = []
        self.shared: int | None = None
        width = -1
        for number in self.numbers:
            expert = chosen.get(number)
            if expert is None:
                raise ValueError(f"experts: expert {number} is routed to but not given")
            ready: ReadyExpert | None = expert.prepared or ready_expert(expert)
            if ready is None:
                self.native = False
                return
            if width < 0:
                width = ready.width
            if ready.width != width or ready.hidden != hidden:
                raise ValueError(
                    f"experts: gates of {width} × {hidden} and {ready.width} × {ready.hidden} do not fit "
                    f"each other or input {list(x.shape)}"
                )
            self.places.append(ready.address)
        if shared is not None:
            last: ReadyExpert | None = shared.prepared or ready_expert(shared)
            if last is None:
                self.native = False
            elif last.hidden != hidden:
                raise ValueError(
                    f"experts: the shared one's {last.hidden} columns do not fit input {list(x.shape)}"
                )
            else:
                self.shared = last.address

    def arguments(self) -> tuple[Any, ...]:
        count = len(self.numbers)
        return (c_void_p * count)(*self.places), (c_int64 * count)(*self.numbers), count, self.ids.data_ptr()


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    chosen: Mapping[int, Expert],
    limit: float,
    shared: Expert | None = None,
    shared_limit: float = 0.0,
    out: Tensor | None = None,
) -> Tensor:
    inputs, gates = at(x, "experts input"), at(weights, "routing weights")
    call = _Chosen(x, ids, chosen, shared, partial=out is not None)
    rows, slots = ids.shape
    if weights.shape != ids.shape or (out is not None and out.shape != x.shape):
        raise ValueError(
            f"experts: ids {list(ids.shape)} and weights {list(weights.shape)} for input {list(x.shape)} do not fit"
        )
    if not call.native:
        return _one_by_one(x, ids, weights, chosen, limit, shared, shared_limit, out)
    more = out is not None
    if out is None:
        out = torch.empty_like(x)
    native().ps_experts(
        *call.arguments(),
        *(gates, slots, limit, call.shared, shared_limit),
        *(inputs, rows, at(out, "experts output"), more, parallel.threads()),
    )
    return out


def expert_parts(
    x: Tensor,
    ids: Tensor,
    chosen: Mapping[int, Expert],
    limit: float,
    shared: Expert | None,
    shared_limit: float,
    parts: Tensor,
) -> None:
    inputs, where = at(x, "experts input"), at(parts, "experts' parts")
    call = _Chosen(x, ids, chosen, shared, partial=True)
    rows, slots = ids.shape
    if parts.shape != (rows * slots + rows, x.shape[1]):
        raise ValueError(f"experts: parts {list(parts.shape)} for ids {list(ids.shape)} do not fit")
    if not call.native:
        for number in call.numbers:
            own, places = torch.where(ids == number)
            parts[own * slots + places] = _run(x[own], chosen[number], limit)
        if shared is not None:
            parts[rows * slots :] = _run(x, shared, shared_limit)
        return
    native().ps_expert_parts(
        *call.arguments(),
        *(slots, limit, call.shared, shared_limit, inputs, rows, where, parallel.threads()),
    )


def expert_sum(ids: Tensor, weights: Tensor, parts: Tensor, shared: bool) -> Tensor:
    ids = ids.to(torch.long).contiguous()
    rows, slots = ids.shape
    if weights.shape != ids.shape or parts.shape[0] != rows * slots + rows:
        raise ValueError(f"experts: parts {list(parts.shape)} for ids {list(ids.shape)} do not fit")
    out = torch.empty(rows, parts.shape[1])
    native().ps_expert_sum(
        *(ids.data_ptr(), at(weights, "routing weights"), rows, slots, shared),
        *(at(parts, "experts' parts"), parts.shape[1], out.data_ptr(), parallel.threads()),
    )
    return out


def _run(rows: Tensor, expert: Expert, limit: float) -> Tensor:
    gate, up = linears(rows, (expert.gate, expert.up))
    return linear(swiglu(gate, up, limit), expert.down)


def _one_by_one(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    chosen: Mapping[int, Expert],
    limit: float,
    shared: Expert | None,
    shared_limit: float,
    out: Tensor | None,
) -> Tensor:
    """The same for types that have to be decoded first."""
    if out is None:
        out = torch.zeros_like(x)

    def add(results: Tensor, scales: Tensor, rows: Tensor) -> None:
        native().ps_expert_add(
            *(at(results, "an expert's results"), at(scales, "routing weights"), rows.data_ptr()),
            *(*results.shape, at(out, "experts output")),
        )

    for number in sorted(chosen):
        rows, slots = torch.where(ids == number)
        add(_run(x[rows], chosen[number], limit), weights[rows, slots], rows)
    if shared is not None:
        add(_run(x, shared, shared_limit), torch.ones(x.shape[0]), torch.arange(x.shape[0]))
    return out
