"""Routed experts for one to eight rows, as typed calls of kernels/experts.cu.

Three launches in a row: the `Dense` that decides (router, and the shared expert's gate and up), `GateUp`, `Down`.
"""

import ctypes

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import (
    FLOAT,
    INT,
    SCRATCH,
    VOID,
    DigitOutputArgument,
    DigitVectors,
    Image,
    Input,
    InputsArgument,
    address,
    fit,
    forms_of,
    input_bytes,
    inputs_argument,
    sets_of,
)
from penstock.backend.cuda.launch import Module, module
from penstock.backend.cuda.layouts import CELL, LAYOUTS
from penstock.backend.cuda.routing import CHOSEN_BYTES, Router
from penstock.backend.cuda.weights import Packed, iq2_xxs_grid
from penstock.weights import types
from penstock.weights.types import WeightType

_GRID_BYTES = 256 * 16 * 8  # the IQ2_XXS grid in shared memory


class _GateUp(ctypes.Structure):
    _fields_ = (
        ("weights", VOID), ("grid", VOID),
        ("chosen", VOID), ("inputs", InputsArgument), ("digits", DigitOutputArgument),
        ("format", INT), ("tiles", INT), ("cells", INT),
        ("rows", INT), ("columns", INT), ("forms", INT), ("width", INT),
        ("slices", INT), ("per_row", INT), ("stages", INT), ("stage_bytes", INT), ("depth", INT), ("limit", FLOAT),
    )  # fmt: skip


class _Down(ctypes.Structure):
    _fields_ = (
        ("weights", VOID), ("shared_weights", VOID), ("grid", VOID), ("chosen", VOID),
        ("digits", VOID), ("scales", VOID), ("shared_digits", VOID), ("shared_scales", VOID), ("out", VOID),
        ("format", INT), ("tiles", INT), ("cells", INT), ("rows", INT), ("width", INT), ("per_row", INT),
        ("stages", INT), ("stage_bytes", INT),
    )  # fmt: skip


def _experts(kind: WeightType) -> Module:
    """The kernels for one format: all of them would take half a minute to compile."""
    return module("experts.cu", f"-DEXPERT_FORMAT={kind.name}")


class GateUp:
    """swiglu(gate, up) of every row's experts → acts, vectors row · count + slot."""

    def __init__(
        self, weights: Packed, router: Router, x: Input, acts: DigitVectors, rows: int,
        norm: torch.Tensor | None = None, eps: float = 0.0, limit: float = 10.0, stages: int = 2,
    ):  # fmt: skip
        kind, columns = weights.kind, weights.cells * CELL
        forms, stage, slices = forms_of([kind], rows), 2 * LAYOUTS[kind].cell_bytes, 8
        while slices > weights.cells:
            slices //= 2
        depth = 4 if rows <= 2 else 2
        fixed = SCRATCH + CHOSEN_BYTES + depth * 16 * 2 * rows * 64 + input_bytes(columns, rows, forms)
        fixed += _GRID_BYTES if kind is types.IQ2_XXS else 0
        stages, shared = fit(fixed, stage, 16, stages)
        if not stages:
            raise ValueError(f"{rows} rows of {columns} columns do not fit in a block's shared memory")
        grid = iq2_xxs_grid()
        self._argument = _GateUp(
            address(weights.data), address(grid), address(router.chosen),
            inputs_argument(x, norm, eps, weights.columns), acts.argument(), LAYOUTS[kind].number, weights.tiles,
            weights.cells, rows, columns, forms, weights.rows, slices, router.count, stages, stage, depth, limit,
        )  # fmt: skip
        self._keep = (weights, router, x, acts, norm, grid)
        source = "image" if isinstance(x, Image) else "any"
        self._kernel = _experts(kind).kernel(f"gate_up_experts_{source}_{4 * sets_of(rows)}", shared)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(card().multiprocessors, 512, (self._argument,), overlap)


class Down:
    """out [rows, width] = the routed experts' outputs, weighted, plus the shared expert's.

    It reads what the router chose before it waits for the kernel before it, which must be `GateUp`."""

    def __init__(
        self, weights: Packed, router: Router, acts: DigitVectors, out: torch.Tensor, rows: int,
        shared: Packed | None = None, shared_acts: DigitVectors | None = None, stages: int = 3,
    ):  # fmt: skip
        kind, sets = weights.kind, sets_of(rows)
        stage = max(
            4352, LAYOUTS[kind].cell_bytes
        )  # a Q8_0 cell of the shared expert, or several of the others'
        fixed = (
            1024 + CHOSEN_BYTES + 2 * 8 * 4 * sets * 16 * 4 + (_GRID_BYTES if kind is types.IQ2_XXS else 0)
        )
        stages, size = fit(fixed, stage, 8, stages)
        grid = iq2_xxs_grid()
        self._argument = _Down(
            address(weights.data), address(shared.data if shared else None), address(grid), address(router.chosen),
            address(acts.digits), address(acts.scales), address(shared_acts.digits if shared_acts else None),
            address(shared_acts.scales if shared_acts else None), address(out), LAYOUTS[kind].number, weights.tiles,
            weights.cells, rows, weights.rows, router.count, stages, stage,
        )  # fmt: skip
        self._keep = (weights, router, acts, out, shared, shared_acts, grid)
        self._grid = min(2 * card().multiprocessors, weights.tiles)
        self._kernel = _experts(kind).kernel(f"down_experts_{4 * sets}", size)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 256, (self._argument,), overlap)
