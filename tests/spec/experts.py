"""Routed experts and the shared one."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.backend.base import DeviceWeight
from penstock.backend.deepseek_v4 import ExpertsSpec
from tests.spec.linear import linear
from tests.spec.low_precision import LINEAR_GROUP, round_fp8


class Expert(NamedTuple):
    gate: DeviceWeight  # [width, hidden]
    up: DeviceWeight
    down: DeviceWeight  # [hidden, width]


def experts(
    x: Tensor,
    ids: Tensor,
    weights: Tensor,
    routed: Mapping[int, Expert],
    shared: Expert,
    spec: ExpertsSpec,
    low_precision: bool = False,
) -> Tensor:
    """Σ over each row's experts of weight · expert(x), and the shared one: x [rows, hidden] → [rows, hidden]"""
    out = _expert(x, shared, torch.ones(len(x), 1), spec.shared_limit, low_precision)
    for number in ids.unique().tolist():
        rows, slots = torch.where(ids == number)
        term = _expert(x[rows], routed[number], weights[rows, slots, None], spec.limit, low_precision)
        out = out.index_add(0, rows, term)
    return out


def _expert(x: Tensor, expert: Expert, weight: Tensor, limit: float, low_precision: bool) -> Tensor:
    x = round_fp8(x, LINEAR_GROUP) if low_precision else x
    inner = swiglu(linear(x, expert.gate), linear(x, expert.up), limit) * weight
    return linear(round_fp8(inner, LINEAR_GROUP) if low_precision else inner, expert.down)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate.clamp(max=limit)) * up.clamp(min=-limit, max=limit)
