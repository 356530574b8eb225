"""The interface between a layer and its routed experts, and the simplest store behind it."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from penstock.kernels.ops import Ops
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.tensor import Weight


class ExpertStore(ABC):
    """Runs routed experts.  Where their bytes come from is the store's own business and never changes a result.

    `run` adds up, for every row, its experts' outputs times their weights in ascending order of expert id, so
    that a row's sum does not depend on its batch-mates.  An id that appears twice in a row counts twice.
    """

    @abstractmethod
    def run(self, block: str, x: Tensor, ids: Tensor, weights: Tensor, limit: float) -> Tensor:
        """block: "blk.7" or "mtp.0"; x [rows, hidden]; ids, weights [rows, k] → [rows, hidden]"""


class MappedExperts(ExpertStore):
    """Experts straight from the mapped file; the operating system decides what stays in memory.

    `simulate_low_precision` rounds what enters the down projection as DeepSeek's own code does: to FP8 in groups
    of 128, after the routing weight has been multiplied in.
    """

    def __init__(self, checkpoint: Checkpoint, ops: Ops, simulate_low_precision: bool = False):
        self.checkpoint, self.ops = checkpoint, ops
        self.simulate_low_precision = simulate_low_precision

    def run(self, block: str, x: Tensor, ids: Tensor, weights: Tensor, limit: float) -> Tensor:
        out = torch.zeros_like(x)
        for expert in torch.unique(ids).tolist():  # ascending
            rows, slots = torch.where(ids == expert)
            out.index_add_(0, rows, self._expert(block, expert, x[rows], weights[rows, slots, None], limit))
        return out

    def _expert(self, block: str, expert: int, x: Tensor, weight: Tensor, limit: float) -> Tensor:
        """x [rows, hidden], weight [rows, 1] → the expert's weighted output [rows, hidden]"""
        gate, up, down = (
            Weight(self.checkpoint.expert(block, expert, part)) for part in ("gate", "up", "down")
        )
        ops = self.ops
        inner = ops.swiglu(ops.linear(x, gate), ops.linear(x, up), limit)
        if self.simulate_low_precision:
            return ops.linear(ops.round_fp8(inner * weight, 128), down)
        return ops.linear(inner, down) * weight
