"""Routing, and the activation inside an expert."""

import torch
from torch import Tensor

from penstock.kernels.cpu import parallel
from penstock.kernels.cpu.library import expect, floats, native, pointer


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
