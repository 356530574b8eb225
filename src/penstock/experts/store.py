"""The interface between a layer and its routed experts, and the simplest store behind it."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from penstock.experts.dense import block_order
from penstock.experts.heat import ExpertMap, Heat
from penstock.experts.rounding import rounded_sum
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
        following: Callable[[], None] | None = None,
    ) -> Tensor:
        """block: "blk.7" or "mtp.0"; x [rows, hidden]; ids, weights [rows, k] → [rows, hidden].  `following` is
        called when all that is needed is on its way, which is the time to think of what comes next."""

    @property
    def guessing(self) -> bool:
        """Whether it is of any use to `guess`."""
        return False

    def expect(self, block: str, ids: Tensor) -> None:  # noqa: B027 - only of use where experts have to come
        """The block will be asked for these experts."""

    def guess(self, block: str, ids: Tensor) -> None:  # noqa: B027
        """The block will perhaps be asked for these experts."""

    def map(self) -> ExpertMap | None:
        """Which experts are in memory and how much they are used, if the store knows.  Waits for nobody."""
        return None


class MappedExperts(ExpertStore):
    """Experts straight from the mapped file; the operating system decides what stays in memory."""

    def __init__(self, checkpoint: Checkpoint, ops: Ops, simulate_low_precision: bool = False):
        self.checkpoint, self.ops = checkpoint, ops
        self.simulate_low_precision = simulate_low_precision
        for file in checkpoint.files:
            file.expect_all()
        self._experts: dict[tuple[str, int], Expert] = {}  # views of the file, made when first used
        self._heat = Heat(block_order(checkpoint), checkpoint.config.experts)

    def run(
        self,
        block: str,
        x: Tensor,
        ids: Tensor,
        weights: Tensor,
        limit: float,
        shared: Expert | None = None,
        shared_limit: float = 0.0,
        following: Callable[[], None] | None = None,
    ) -> Tensor:
        del following  # nothing is ever on its way here
        chosen = {number: self._expert(block, number) for number in set(ids.view(-1).tolist())}
        self._heat.use(block, chosen)
        if self.simulate_low_precision:
            out = torch.zeros_like(x)
            rounded_sum(self.ops, x, ids, weights, chosen, limit, shared, shared_limit, out)
            return out
        return self.ops.experts(x, ids, weights, chosen, limit, shared, shared_limit)

    def _expert(self, block: str, number: int) -> Expert:
        found = self._experts.get((block, number))
        if found is None:
            parts = (Weight(self.checkpoint.expert(block, number, part)) for part in ("gate", "up", "down"))
            found = self._experts[block, number] = Expert(*parts)
        return found

    def map(self) -> ExpertMap:
        """All are present: which of them really are is known to the system alone."""
        heat = self._heat.now()
        return ExpertMap(self._heat.blocks, np.ones(heat.shape, bool), heat)
