"""Which experts a row's logits choose: the numbers behind kernels/routing.cuh."""

import ctypes
from dataclasses import dataclass, field

import numpy as np
import torch

from penstock.backend.cuda.inputs import FLOAT, INT, VOID, address, few_rows

MAX_COUNT = 8
MAX_EXPERTS = 12 * 32  # MAX_PER_LANE of routing.cuh
ROUTED, MANY = 8, 32  # rows that there is room for: ROUTED_ROWS of routing.cuh, of experts_many.cu


def _pairs(rows: int) -> int:
    """That kernels have room for which are made for so many rows."""
    return rows * MAX_COUNT


def jobs_dtype(rows: int) -> np.dtype[np.void]:
    """struct Jobs"""
    job = [("expert", "i4"), ("rows", "i4"), ("first", "i4"), ("row", "i4", 4), ("padding", "i4")]
    pairs = _pairs(rows)
    return np.dtype(
        [
            ("count", "i4"),
            ("pairs", "i4"),
            ("padding", "i4", 2),
            ("vector", "i4", pairs),
            ("weight", "f4", pairs),
            ("job", job, pairs),
        ]
    )


_CHOSEN = 4 * 2 * _pairs(ROUTED)  # struct Chosen: ids, weights [rows, count]
_CANDIDATES = 6 * ROUTED * 12 * MAX_COUNT  # keys and ids
_JOBS = jobs_dtype(ROUTED).itemsize
CHOICE_BYTES = -(-(_CHOSEN + _CANDIDATES + 4 * (MAX_EXPERTS + 12) + _JOBS) // 128) * 128  # struct Choice
JOBS_BYTES = -(-_JOBS // 128) * 128


class RoutingArgument(ctypes.Structure):
    _fields_ = (
        ("logits", VOID), ("bias", VOID), ("table", VOID), ("tokens", VOID),
        ("experts", INT), ("count", INT), ("normalize", INT), ("parts", INT), ("scale", FLOAT),
    )  # fmt: skip


@dataclass
class Router:
    """How a row's experts follow from its logits [rows, experts], or from parts that add up to them
    [parts, rows, experts]; `table` [vocabulary, count] int32 and `tokens` [rows] int32 where they follow from its
    token."""

    logits: torch.Tensor
    count: int
    scale: float
    bias: torch.Tensor | None = None
    table: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    normalize: bool = True
    chosen: torch.Tensor = field(init=False)  # struct Chosen, written by whoever chooses
    jobs: torch.Tensor = field(init=False)  # struct Jobs, likewise
    counter: torch.Tensor = field(init=False)  # int32 [1]: parts of the logits that are there

    def __post_init__(self) -> None:
        size = 4 * 2 * _pairs(self.room)
        self.chosen = torch.zeros(size, dtype=torch.uint8, device="cuda")
        self.jobs = torch.zeros(jobs_dtype(self.room).itemsize, dtype=torch.uint8, device="cuda")
        self.counter = torch.zeros(1, dtype=torch.int32, device="cuda")

    @property
    def experts(self) -> int:
        return self.logits.shape[-1]

    @property
    def room(self) -> int:
        """Rows that the kernels of this number of rows are made for."""
        return ROUTED if self.logits.shape[-2] <= few_rows() else MANY

    def argument(self) -> RoutingArgument:
        return RoutingArgument(
            address(self.logits), address(self.bias), address(self.table), address(self.tokens),
            self.experts, self.count, int(self.normalize),
            1 if self.logits.ndim == 2 else len(self.logits), self.scale,
        )  # fmt: skip

    def ids(self, rows: int) -> torch.Tensor:
        """The experts chosen last, int32 [rows, count], best first."""
        return self._chosen(0).view(torch.int32).view(self.room, MAX_COUNT)[:rows, : self.count]

    def weights(self, rows: int) -> torch.Tensor:
        """Their weights, float32 [rows, count]."""
        return self._chosen(1).view(torch.float32).view(self.room, MAX_COUNT)[:rows, : self.count]

    def _chosen(self, part: int) -> torch.Tensor:
        size = 4 * _pairs(self.room)
        return self.chosen[part * size : (part + 1) * size]
