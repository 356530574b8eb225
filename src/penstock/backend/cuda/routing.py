"""Which experts a row's logits choose: the numbers behind kernels/routing.cuh."""

import ctypes
from dataclasses import dataclass, field

import torch

from penstock.backend.cuda.inputs import FLOAT, INT, MAX_ROWS, VOID, address

MAX_COUNT = 8
MAX_EXPERTS = 12 * 32  # MAX_PER_LANE of routing.cuh
MAX_PAIRS = MAX_ROWS * MAX_COUNT
_CHOSEN = 4 * 2 * MAX_PAIRS  # struct Chosen: ids, weights [rows, count]
_JOBS = 16 + 4 * (2 + 8) * MAX_PAIRS  # struct Jobs: counts; vector, weight, job [pairs]
_CANDIDATES = 6 * MAX_ROWS * 12 * MAX_COUNT  # keys and ids
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
    chosen: torch.Tensor = field(init=False)  # struct Chosen, written by `Up`
    jobs: torch.Tensor = field(init=False)  # struct Jobs, likewise, for `Down`
    counter: torch.Tensor = field(init=False)  # int32 [1]: parts of the logits that are there

    def __post_init__(self) -> None:
        self.chosen = torch.zeros(_CHOSEN, dtype=torch.uint8, device="cuda")
        self.jobs = torch.zeros(JOBS_BYTES, dtype=torch.uint8, device="cuda")
        self.counter = torch.zeros(1, dtype=torch.int32, device="cuda")

    @property
    def experts(self) -> int:
        return self.logits.shape[-1]

    def argument(self) -> RoutingArgument:
        return RoutingArgument(
            address(self.logits), address(self.bias), address(self.table), address(self.tokens),
            self.experts, self.count, int(self.normalize),
            1 if self.logits.ndim == 2 else len(self.logits), self.scale,
        )  # fmt: skip

    def ids(self, rows: int) -> torch.Tensor:
        """The experts chosen last, int32 [rows, count], best first."""
        return self.chosen[: 4 * MAX_PAIRS].view(torch.int32).view(MAX_ROWS, MAX_COUNT)[:rows, : self.count]

    def weights(self, rows: int) -> torch.Tensor:
        """Their weights, float32 [rows, count]."""
        part = self.chosen[4 * MAX_PAIRS : 8 * MAX_PAIRS]
        return part.view(torch.float32).view(MAX_ROWS, MAX_COUNT)[:rows, : self.count]
