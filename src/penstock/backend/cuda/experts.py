"""A layer's experts for one row or two (`few_rows`), as typed calls of kernels/experts_up.cu and experts_down.cu; for
more rows, and on cards that do not take these, there is experts_many.py.

Two launches: `Up`, the router's product, the shared expert's gate and up meanwhile, and the routed ones' when all
logits are there; `Down`.  For other formats the router's product comes first: a `Dense` with `late`, which lets `Up`
start when the input's image is there.
"""

import ctypes

import torch

from penstock.backend.cuda.dense import slices_of
from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import (
    DIGITS,
    FLOAT,
    INT,
    VOID,
    DigitOutputArgument,
    DigitVectors,
    Image,
    InputsArgument,
    address,
    few_rows,
    fit,
    forms_of,
    input_bytes,
    inputs_argument,
)
from penstock.backend.cuda.launch import Module, module
from penstock.backend.cuda.layouts import CELL, LAYOUTS
from penstock.backend.cuda.routing import CHOICE_BYTES, JOBS_BYTES, Router, RoutingArgument
from penstock.backend.cuda.weights import Packed, iq2_xxs_grid
from penstock.weights import types
from penstock.weights.types import WeightType

_UP_WARPS, _DOWN_WARPS, _LOG_VECTORS = 16, 8, 3  # of experts_up.cu, experts_down.cu
_BARRIERS = 1024
_GRID_BYTES = 256 * 16 * 8  # the IQ2_XXS grid in shared memory
_SHARED_CELL = LAYOUTS[types.Q8_0].cell_bytes
_ROUTER_PIECE = LAYOUTS[types.F16].cell_bytes // 2


class _RouterPart(ctypes.Structure):
    _fields_ = (
        ("weights", VOID), ("out", VOID), ("counter", VOID), ("tiles", INT), ("log_slices", INT), ("pieces", INT),
    )  # fmt: skip


class _Up(ctypes.Structure):
    _fields_ = (
        ("weights", VOID), ("shared_weights", VOID), ("router", _RouterPart), ("grid", VOID),
        ("routing", RoutingArgument), ("places", VOID), ("chosen", VOID), ("jobs", VOID),
        ("inputs", InputsArgument), ("digits", DigitOutputArgument), ("shared_digits", DigitOutputArgument),
        ("tiles", INT), ("cells", INT), ("rows", INT), ("columns", INT), ("forms", INT), ("width", INT),
        ("log_shared_slices", INT), ("stages", INT), ("stage_bytes", INT), ("pack", INT), ("depth", INT),
        ("early_bytes", INT),
        ("limit", FLOAT), ("shared_limit", FLOAT),
    )  # fmt: skip


class _Down(ctypes.Structure):
    _fields_ = (
        ("weights", VOID), ("shared_weights", VOID), ("grid", VOID), ("jobs", VOID), ("counter", VOID),
        ("digits", VOID), ("scales", VOID), ("shared_digits", VOID), ("shared_scales", VOID), ("out", VOID),
        ("tiles", INT), ("cells", INT), ("rows", INT), ("width", INT), ("count", INT),
        ("stages", INT), ("stage_bytes", INT), ("ahead", VOID), ("ahead_bytes", INT),
    )  # fmt: skip


def _source(name: str, kind: WeightType, *more: str) -> Module:
    """The kernel for one format: all of them would take half a minute to compile."""
    return module(name, f"-DEXPERT_FORMAT={kind.name}", *more)


def _whole(floats: int) -> int:
    """Bytes, by 128."""
    return -(-4 * floats // 128) * 128


def up_forms(kind: WeightType, rows: int) -> int:
    """The forms of the input that `Up` takes."""
    return forms_of([kind], 1) if rows <= few_rows() else DIGITS


def log_slices(cells: int) -> int:
    """Of an expert's sums: eight, or fewer where there are fewer cells."""
    return min(3, cells.bit_length() - 1)


def takes_along(router: Packed, shared: Packed, shared_down: Packed, routed: Packed, rows: int) -> bool:
    """Whether `Up` can have the router and the shared expert with it."""
    even = router.cells * 2 % slices_of(router) == 0
    along = rows <= few_rows() and even and router.kind is types.F16
    return along and shared_comes_along(shared, shared_down, routed)


def shared_comes_along(gate_up: Packed, down: Packed, routed: Packed) -> bool:
    """Whether the routed experts' kernels can take the shared one, and give it the bits that `Dense` would."""
    shapes = (gate_up.rows, gate_up.cells) == (routed.rows, routed.cells)
    slices = slices_of(gate_up) == 1 << log_slices(gate_up.cells)
    return {gate_up.kind, down.kind} == {types.Q8_0} and shapes and slices


class Up:
    """swiglu(gate, up) of every row's experts → acts, vectors row · count + slot; of the shared one → shared_acts.

    gate: the router's matrix, where `takes_along` allows; its parts of the logits go to `router.logits`.
    places: int32 [experts], where each lies among the weights; −1: it is left out"""

    def __init__(
        self, weights: Packed, router: Router, x: Image, acts: DigitVectors, rows: int, gate: Packed | None = None,
        shared: Packed | None = None, shared_acts: DigitVectors | None = None, limit: float = 10.0,
        shared_limit: float = 10.0, stages: int = 3, places: torch.Tensor | None = None,
    ):  # fmt: skip
        kind, columns = weights.kind, weights.cells * CELL
        forms, cell = up_forms(kind, rows), LAYOUTS[kind].cell_bytes
        if rows > few_rows():
            raise ValueError(f"{rows} rows: `Up` takes {few_rows()} on this card")
        pack = 2 if weights.cells > 8 and 4 * cell <= 4608 else 1
        stage = max(2 * pack * cell, _SHARED_CELL if shared else 0)
        part, depth = 2 * rows * 16, 3
        early = _whole(max(depth * _UP_WARPS * part, 2 * rows * (-(-router.experts // 32) * 32)))
        early += _GRID_BYTES if kind is types.IQ2_XXS else 0
        along = _RouterPart()
        if gate is not None:
            slices, pieces = slices_of(gate), 2 * gate.cells
            along = _RouterPart(
                address(gate.data),
                address(router.logits),
                address(router.counter),
                gate.tiles,
                slices.bit_length() - 1,
                pieces // slices,
            )
            early = max(early, _whole(pieces // slices * _ROUTER_PIECE // 4 + rows * (columns + 16)))
        fixed = _BARRIERS + CHOICE_BYTES + input_bytes(columns, rows, forms) + early
        fixed += _UP_WARPS // 2 * part * 4 if shared else 0
        stages, size = fit(fixed, stage, _UP_WARPS, stages)
        if not stages:
            raise ValueError(f"{rows} rows of {columns} columns do not fit in a block's shared memory")
        grid = iq2_xxs_grid()
        self._argument = _Up(
            address(weights.data), address(shared.data if shared else None), along, address(grid), router.argument(),
            address(places), address(router.chosen), address(router.jobs),
            inputs_argument(x, None, 0.0, weights.columns), acts.argument(),
            shared_acts.argument() if shared_acts else DigitOutputArgument(), weights.tiles,
            weights.cells, rows, columns, forms, weights.rows, slices_of(shared).bit_length() - 1 if shared else 0,
            stages, stage, pack, depth, early, limit, shared_limit,
        )  # fmt: skip
        self._keep = (weights, router, x, acts, gate, shared, shared_acts, grid, places)
        source = _source("experts_up.cu", kind, *(["-DWITH_PLACES"] if places is not None else []))
        self._kernel = source.kernel("experts_up", size)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(card().multiprocessors, 32 * _UP_WARPS, (self._argument,), overlap)


class Down:
    """out [rows, width] = the routed experts' outputs, weighted, plus the shared expert's.

    It reads what `Up`, which must be the kernel before it, has chosen, before it waits for it.
    ahead: what the next kernel reads that does not come from this one, to be brought nearer meanwhile."""

    def __init__(
        self, weights: Packed, router: Router, acts: DigitVectors, out: torch.Tensor, rows: int,
        shared: Packed | None = None, shared_acts: DigitVectors | None = None, ahead: torch.Tensor | None = None,
        stages: int = 3,
    ):  # fmt: skip
        kind, cells = weights.kind, weights.cells
        stage = max(
            _SHARED_CELL, LAYOUTS[kind].cell_bytes
        )  # a cell of the shared expert, or several of the others'
        slices = _DOWN_WARPS
        while slices > cells:
            slices //= 2
        part, factors = rows * 16, (rows * router.count + rows) * -(-cells // slices)
        own = (
            (_DOWN_WARPS * 2 * CELL << _LOG_VECTORS)
            + _whole(2 * _DOWN_WARPS * part)
            + _whole(_DOWN_WARPS * factors)
        )
        fixed = _BARRIERS + JOBS_BYTES + own
        fixed += _GRID_BYTES if kind is types.IQ2_XXS else 0
        half = (card().shared_limit + 1024) // 2 - 1024  # of what two blocks can have
        stages = max(2, min(stages, (half - fixed) // (_DOWN_WARPS * stage)))
        stages, size = fit(fixed, stage, _DOWN_WARPS, stages)
        if not stages:
            raise ValueError(
                f"{rows} rows of {weights.columns} columns do not fit in a block's shared memory"
            )
        grid, self._grid = iq2_xxs_grid(), min(2 * card().multiprocessors, weights.tiles)
        self._argument = _Down(
            address(weights.data), address(shared.data if shared else None), address(grid), address(router.jobs),
            address(router.counter), address(acts.digits), address(acts.scales),
            address(shared_acts.digits if shared_acts else None),
            address(shared_acts.scales if shared_acts else None), address(out), weights.tiles, cells, rows,
            weights.rows, router.count, stages, stage, address(ahead),
            0 if ahead is None else ahead.nbytes,
        )  # fmt: skip
        self._keep = (weights, router, acts, out, shared, shared_acts, grid, ahead)
        self._kernel = _source("experts_down.cu", kind).kernel("experts_down", size)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 32 * _DOWN_WARPS, (self._argument,), overlap)
