"""Products of one to eight rows with dense matrices, as typed calls of kernels/dense.cu.

Launches are made once, with fixed memory, and run again and again, so that a graph can hold them.  A row's result has
the same bits whatever the other rows are.
"""

import ctypes
from collections.abc import Sequence

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.inputs import (
    FLOAT,
    INT,
    SCRATCH,
    VOID,
    DigitImage,
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
from penstock.backend.cuda.launch import Kernel, Module, module
from penstock.backend.cuda.layouts import CELL, LAYOUTS
from penstock.backend.cuda.weights import Packed
from penstock.weights import types
from penstock.weights.types import WeightType


class _Segment(ctypes.Structure):
    _fields_ = (
        ("weights", VOID), ("out", VOID), ("format", INT), ("tiles", INT), ("pieces", INT), ("piece_bytes", INT),
        ("rows", INT), ("stride", INT), ("paired", INT), ("log_slices", INT),
    )  # fmt: skip


class _Dense(ctypes.Structure):
    _fields_ = (
        ("segments", _Segment * 8), ("inputs", InputsArgument), ("digits", DigitOutputArgument),
        ("count", INT), ("groups", INT), ("rows", INT), ("columns", INT), ("forms", INT),
        ("stages", INT), ("stage_bytes", INT), ("depth", INT), ("ahead", VOID), ("ahead_bytes", INT), ("late", INT),
        ("beside", INT), ("limit", FLOAT),
    )  # fmt: skip


_Part = tuple[Packed, _Segment]


class Dense:
    """Matrices with the same inputs: x [rows, width] → outs [rows, rows of the matrix] each.

    norm: the weight of an RMS norm on the way in.  A matrix with `count` > 1 is grouped: group g sees columns
    g · width … of x and writes its own rows; it must be alone.  A `paired` matrix gives swiglu(gate, up).
    digits: the first matrix's output also as digits; then its out must be `digits.values`.
    ahead: what the next kernel reads that does not come from this one, to be brought nearer meanwhile.
    late: the next kernel starts when the one before this has ended, and may read what that one wrote at once.
    beside: x, an image, is older than the kernel before, which lets this one start when all before it has ended.

    One launch where the inputs fit in shared memory; else one for every form of input, or for half the rows.
    """

    def __init__(
        self, matrices: Sequence[Packed], x: Input, outs: Sequence[torch.Tensor], rows: int,
        norm: torch.Tensor | None = None, eps: float = 0.0, digits: DigitVectors | DigitImage | None = None,
        limit: float = 0.0, ahead: torch.Tensor | None = None, late: bool = False, stages: int = 2,
        beside: bool = False,
    ):  # fmt: skip
        first = matrices[0]
        if any(m.columns != first.columns or (m.count > 1 and len(matrices) > 1) for m in matrices):
            raise ValueError("matrices of one launch have the same columns, and a grouped one is alone")
        self._keep = (matrices, x, outs, norm, digits, ahead)
        self._launches: list[tuple[Kernel, int, int, _Dense]] = []
        self._x, self._rows, self._limit, self._late, self._stages = x, rows, limit, late, stages
        self._ahead, self._beside = ahead, beside
        self.nbytes = sum(m.nbytes for m in matrices)
        segments = [_segment(m, out) for m, out in zip(matrices, outs, strict=True)]
        output = digits.argument() if digits else DigitOutputArgument()
        inputs = inputs_argument(x, norm, eps, first.columns)
        self._add(list(zip(matrices, segments, strict=True)), inputs, output, rows)

    def _add(
        self, parts: list[_Part], inputs: InputsArgument, output: DigitOutputArgument, rows: int
    ) -> None:
        first, columns = parts[0][0], parts[0][0].cells * CELL
        forms = forms_of([m.kind for m, _ in parts], rows)
        stage = max(_piece(m.kind)[0] for m, _ in parts)
        # Sixteen warps on a multiprocessor: two blocks, or one that has the inputs of many rows once, if that leaves
        # room.
        of_inputs = SCRATCH + input_bytes(columns, rows, forms)
        for warps, depth in (
            ((8, 4),) if rows <= 2 else ((8, 2),) if rows <= 4 else ((16, 2), (16, 1), (8, 2))
        ):
            stages, shared = fit(of_inputs + depth * warps * 2 * rows * 64, stage, warps, self._stages)
            if stages > 1:
                break
        if stages:
            # Two blocks on every multiprocessor, where they fit, and no block without work.
            blocks = card().multiprocessors * (
                2 if rows <= 4 and 2 * (shared + 1024) <= card().shared_limit + 1024 else 1
            )
            rounds = sum(-(-m.tiles // (warps >> segment.log_slices)) for m, segment in parts)
            grid = min(max(1, blocks // first.count), rounds) * first.count
            argument = _Dense(
                (_Segment * 8)(*(segment for _, segment in parts)), inputs, output, len(parts), first.count,
                rows, columns, forms, stages, stage, depth, address(self._ahead),
                0 if self._ahead is None else self._ahead.nbytes, int(self._late), int(self._beside), self._limit,
            )  # fmt: skip
            kernel = self._kernels(parts, sets_of(rows), warps).kernel("dense", shared)
            self._launches.append((kernel, grid, 32 * warps, argument))
            return
        by_form: dict[int, list[_Part]] = {}
        for part in parts:
            by_form.setdefault(forms_of([part[0].kind], rows), []).append(part)
        if len(by_form) > 1:
            for some in by_form.values():
                self._add(some, inputs, output if some[0] is parts[0] else DigitOutputArgument(), rows)
            return
        if rows == 1 or output.digits or isinstance(self._x, Image):
            raise ValueError(f"{rows} rows of {columns} columns do not fit in a block's shared memory")
        for start, count in ((0, rows // 2), (rows // 2, rows - rows // 2)):
            moved = [(m, _moved_segment(segment, start)) for m, segment in parts]
            self._add(moved, _moved_inputs(inputs, start), output, count)

    def _kernels(self, parts: list[_Part], sets: int, warps: int) -> Module:
        """The smallest kernels that do: the fewer instructions, the fewer have to be fetched, and compiled."""
        formats = sum({1 << LAYOUTS[m.kind].number for m, _ in parts})
        source = "IMAGE" if isinstance(self._x, Image) else "ROWS"
        shape = (f"-DDENSE_SETS={sets}", f"-DDENSE_WARPS={warps}")
        return module("dense.cu", f"-DDENSE_FORMATS={formats}", f"-DDENSE_SOURCE={source}", *shape)

    def launch(self, overlap: bool = True) -> None:
        for kernel, grid, threads, argument in self._launches:
            kernel.launch(grid, threads, (argument,), overlap)


def _piece(kind: WeightType) -> tuple[int, int]:
    """Bytes and columns of what is streamed at a time (formats.cuh)"""
    parts = {types.F16: 2, types.BF16: 2, types.F32: 4}.get(kind, 1)
    return LAYOUTS[kind].cell_bytes // parts, CELL // parts


def slices_of(m: Packed) -> int:
    """As many slices of a tile as give every warp of two blocks a multiprocessor something to do: a rule of the
    matrix alone, because the order of a row's sums follows from it."""
    pieces, slices = m.cells * CELL // _piece(m.kind)[1], 1
    warps = m.tiles * m.count
    while slices < 8 and 2 * slices <= pieces and warps * slices < 2 * 8 * card().multiprocessors * 0.9:
        slices *= 2
    return slices


def _segment(m: Packed, out: torch.Tensor) -> _Segment:
    size, columns = _piece(m.kind)
    return _Segment(
        address(m.data), address(out), LAYOUTS[m.kind].number, m.tiles, m.cells * CELL // columns, size, m.rows,
        out.stride(0), int(m.paired), slices_of(m).bit_length() - 1,
    )  # fmt: skip


def _moved_segment(segment: _Segment, row: int) -> _Segment:
    moved = _Segment.from_buffer_copy(segment)
    moved.out += row * segment.stride * 4
    return moved


def _moved_inputs(inputs: InputsArgument, row: int) -> InputsArgument:
    moved = InputsArgument.from_buffer_copy(inputs)
    moved.x += row * inputs.stride * 4
    return moved
