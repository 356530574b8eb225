"""Routing of many rows, and their experts: rows are sorted by expert, which is read once for all of them."""

import ctypes
from dataclasses import dataclass, field

import torch

from penstock.backend.cuda.inputs import INT, VOID, address
from penstock.backend.cuda.launch import kernel
from penstock.backend.cuda.prefill_products import MOST, HalfRows, Items, multiply, multiply_swiglu
from penstock.backend.cuda.routing import RoutingArgument
from penstock.backend.cuda.weights import Packed


class _Grouping(ctypes.Structure):
    _fields_ = (
        ("routing", RoutingArgument), ("ids", VOID), ("weights", VOID), ("counts", VOID), ("gather", VOID),
        ("factors", VOID), ("places", VOID), ("tiles", VOID), ("tile_count", VOID), ("rows", INT), ("most", INT),
    )  # fmt: skip


class _Combine(ctypes.Structure):
    _fields_ = (
        ("terms", VOID), ("shared", VOID), ("places", VOID), ("out", VOID), ("count", INT), ("width", INT),
    )  # fmt: skip


def _ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32, device="cuda")


@dataclass
class Groups:
    """Which experts the rows chose, and the rows by expert."""

    rows: int
    count: int  # experts of a row
    experts: int
    ids: torch.Tensor = field(init=False)  # int32 [rows, count], best first
    weights: torch.Tensor = field(init=False)  # float32 [rows, count]
    places: torch.Tensor = field(init=False)  # int32 [rows, count]: the item of a choice
    counts: torch.Tensor = field(init=False)  # int32 [experts]: rows of each
    items: Items = field(init=False)  # [rows · count], by rising expert, then by row

    def __post_init__(self) -> None:
        total = self.rows * self.count
        self.ids, self.places = _ints(self.rows, self.count), _ints(self.rows, self.count)
        self.weights = torch.empty(self.rows, self.count, device="cuda")
        self.counts = _ints(self.experts)
        most = min(total, self.experts + total // MOST)
        self.items = Items(_ints(most, 3), _ints(1), _ints(total), torch.empty(total, device="cuda"))

    def route(
        self, logits: torch.Tensor, scale: float, bias: torch.Tensor | None = None,
        table: torch.Tensor | None = None, tokens: torch.Tensor | None = None, normalize: bool = True,
    ) -> None:  # fmt: skip
        """logits [rows, experts]; or experts by token: table int32 [vocabulary, count], tokens int32 [rows]"""
        routing = RoutingArgument(
            address(logits), address(bias), address(table), address(tokens), self.experts, self.count,
            int(normalize), 1, scale,
        )  # fmt: skip
        items = self.items
        argument = _Grouping(
            routing, address(self.ids), address(self.weights), address(self.counts), address(items.gather),
            address(items.factors), address(self.places), address(items.tiles), address(items.tile_count),
            self.rows, MOST,
        )  # fmt: skip
        kernel("prefill_rows.cu", "route_rows").launch(-(-self.rows // 8), 256, (argument,))
        for name in ("count_experts", "group_rows"):
            kernel("prefill_rows.cu", name).launch(self.experts, 1024, (argument,))


def run_experts(
    gate_up: Packed, down: Packed, x: HalfRows, groups: Groups, limit: float, acts: HalfRows, terms: torch.Tensor,
    shared: torch.Tensor | None, out: torch.Tensor,
) -> None:  # fmt: skip
    """out [rows, hidden] = Σ weight · expert(x), by rising id, and `shared` [rows, hidden].

    acts [rows · count, width] and terms [rows · count, hidden] are memory to work in."""
    by_expert, sorted_rows = groups.items, Items(groups.items.tiles, groups.items.tile_count, None)
    multiply_swiglu(gate_up, x, acts, limit, Items(by_expert.tiles, by_expert.tile_count, by_expert.gather))
    sorted_rows.factors = by_expert.factors
    multiply([down], acts, [terms], items=sorted_rows)
    combine(terms, shared, groups, out)


def combine(terms: torch.Tensor, shared: torch.Tensor | None, groups: Groups, out: torch.Tensor) -> None:
    """out [rows, hidden] = each row's terms by rising id, and `shared`"""
    argument = _Combine(
        address(terms), address(shared), address(groups.places), address(out), groups.count, out.shape[1]
    )
    kernel("prefill_rows.cu", "combine_rows").launch(len(out), 256, (argument,))
