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
    """Experts straight from the mapped file; the operating system decides what stays in memory."""

    def __init__(self, checkpoint: Checkpoint, ops: Ops):
        self.checkpoint, self.ops = checkpoint, ops

    def run(self, block: str, x: Tensor, ids: Tensor, weights: Tensor, limit: float) -> Tensor:
        out = torch.zeros_like(x)
        for expert in torch.unique(ids).tolist():  # ascending
            rows, slots = torch.where(ids == expert)
            y = self._expert(block, expert, x[rows], limit)
            out.index_add_(0, rows, y * weights[rows, slots].unsqueeze(1))
        return out

    def _expert(self, block: str, expert: int, x: Tensor, limit: float) -> Tensor:
        gate, up, down = (
            Weight(self.checkpoint.expert(block, expert, part)) for part in ("gate", "up", "down")
        )
        ops = self.ops
        return ops.linear(ops.swiglu(ops.linear(x, gate), ops.linear(x, up), limit), down)
