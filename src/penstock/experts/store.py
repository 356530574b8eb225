"""The interface between a layer and its routed experts, and the simplest store behind it."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from penstock.kernels.ops import Expert, Ops
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.tensor import Weight


class ExpertStore(ABC):
    """Runs routed experts.  Where their bytes come from is the store's own business and never changes a result.

    `run` adds up, for every row, its experts' outputs times their weights in ascending order of expert id, so
    that a row's sum does not depend on its batch-mates.  An id that appears twice in a row counts twice.  A shared
    expert, which sees every row, may come along: it is added last, and its work fills the others' gaps.
    """

    @abstractmethod
    def run(
        self,
        block: str,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        limit: float,
        shared: Expert | None = None,
        shared_limit: float = 0.0,
    ) -> Tensor:
        """block: "blk.7" or "mtp.0"; x [rows, hidden]; ids, weights [rows, k] → [rows, hidden]"""


class MappedExperts(ExpertStore):
    """Experts straight from the mapped file; the operating system decides what stays in memory.

    `simulate_low_precision` rounds what enters the down projection as DeepSeek's own code does: to FP8 in groups
    of 128, after the routing weight has been multiplied in.
    """

    def __init__(self, checkpoint: Checkpoint, ops: Ops, simulate_low_precision: bool = False):
        self.checkpoint, self.ops = checkpoint, ops
        self.simulate_low_precision = simulate_low_precision
        self._experts: dict[tuple[str, int], Expert] = {}  # views of the file, made when first used

    def run(
        self,
        block: str,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        limit: float,
        shared: Expert | None = None,
        shared_limit: float = 0.0,
    ) -> Tensor:
        chosen = {number: self._expert(block, number) for number in set(ids.view(-1).tolist())}
        if not self.simulate_low_precision:
            return self.ops.experts(x, ids, weights, chosen, limit, shared, shared_limit)
        out = torch.zeros_like(x)
        for number in sorted(chosen):
            rows, slots = torch.where(ids == number)
            out.index_add_(0, rows, self._rounded(x[rows], weights[rows, slots, None], chosen[number], limit))
        if shared is None:
            return out
        return out + self._rounded(x, x.new_ones(x.shape[0], 1), shared, shared_limit)

    def _expert(self, block: str, number: int) -> Expert:
        found = self._experts.get((block, number))
        if found is None:
            parts = (Weight(self.checkpoint.expert(block, number, part)) for part in ("gate", "up", "down"))
            found = self._experts[block, number] = Expert(*parts)
        return found

    def _rounded(self, x: Tensor, weight: Tensor, expert: Expert, limit: float) -> Tensor:
        """x [rows, hidden], weight [rows, 1] → the expert's weighted output [rows, hidden]"""
        ops = self.ops
        gate, up = ops.linears(x, (expert.gate, expert.up))
        inner = ops.swiglu(gate, up, limit)
        return ops.linear(ops.round_fp8(inner * weight, 128), expert.down)
