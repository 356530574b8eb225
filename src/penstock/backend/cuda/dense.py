"""Products of up to 32 rows with dense matrices, as typed calls of kernels/dense.cu.

Launches are made once, with fixed memory, and run again and again, so that a graph can hold them.  A row's result has
the same bits whatever the other rows are.
"""

import ctypes
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.hyper import MakeImage
from penstock.backend.cuda.inputs import (
    FLOAT,
    FLOATS,
    INT,
    PIECE,
    SCRATCH,
    VOID,
    DigitImage,
    DigitOutputArgument,
    DigitVectors,
    Image,
    Input,
    InputsArgument,
    address,
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
        ("stages", INT), ("stage_bytes", INT), ("depth", INT), ("halves", INT), ("ahead", VOID), ("ahead_bytes", INT),
        ("late", INT), ("limit", FLOAT),
    )  # fmt: skip


_Part = tuple[Packed, _Segment]


class _Shape(NamedTuple):
    """Of a launch: where its inputs are (Source of kernels/inputs.cuh), blocks on a multiprocessor, warps of a
    block, …, bytes of shared memory."""

    source: str
    blocks: int
    warps: int
    depth: int
    log_cluster: int
    stages: int
    stage: int
    halves: int
    shared: int


class _Launch(NamedTuple):
    kernel: Kernel
    grid: int
    threads: int
    argument: _Dense
    overlaps: bool


class Dense:
    """Matrices with the same inputs: x [rows, width] → outs [rows, rows of the matrix] each.

    norm: the weight of an RMS norm on the way in.  A matrix with `count` > 1 is grouped: group g sees columns
    g · width … of x and writes its own rows; it must be alone.  A `paired` matrix gives swiglu(gate, up).
    digits: the first matrix's output also as digits; then its out must be `digits.values`.
    ahead: what the next kernel reads that does not come from this one, to be brought nearer meanwhile.
    late: the next kernel starts when the one before this has ended, and may read what that one wrote at once.

    One launch where the inputs fit in the shared memory of a cluster's blocks; else one for every form of input.
    Where that does not help either, rows of floats go by halves, and an image stays in memory.
    """

    def __init__(
        self, matrices: Sequence[Packed], x: Input, outs: Sequence[torch.Tensor], rows: int,
        norm: torch.Tensor | None = None, eps: float = 0.0, digits: DigitVectors | DigitImage | None = None,
        limit: float = 0.0, ahead: torch.Tensor | None = None, late: bool = False, stages: int = 2,
    ):  # fmt: skip
        first = matrices[0]
        if any(m.columns != first.columns or (m.count > 1 and len(matrices) > 1) for m in matrices):
            raise ValueError("matrices of one launch have the same columns, and a grouped one is alone")
        self._keep = (matrices, x, outs, norm, digits, ahead)
        self._launches: list[_Launch] = []
        self._made_before: list[MakeImage] = []
        self._x, self._norm, self._limit, self._late, self._stages = x, norm, limit, late, stages
        self._ahead = ahead
        self.nbytes = sum(m.nbytes for m in matrices)
        segments = [_segment(m, out) for m, out in zip(matrices, outs, strict=True)]
        output = digits.argument() if digits else DigitOutputArgument()
        inputs = inputs_argument(x, norm, eps, first.columns)
        self._add(list(zip(matrices, segments, strict=True)), inputs, output, rows)

    def _add(
        self, parts: list[_Part], inputs: InputsArgument, output: DigitOutputArgument, rows: int
    ) -> None:
        columns = parts[0][0].cells * CELL
        forms = forms_of([m.kind for m, _ in parts], rows)
        source = "IMAGE" if isinstance(self._x, Image) else "ROWS"
        in_pieces = isinstance(self._x, Image) and not forms & FLOATS  # as more rows than one have to be
        shape = None
        if rows <= PIECE or in_pieces:
            shape = self._shape(source, parts, columns, rows, forms)
        if shape is not None:
            self._launch_of(shape, parts, inputs, output, rows, forms)
            return
        by_form: dict[int, list[_Part]] = {}
        for part in parts:
            by_form.setdefault(forms_of([part[0].kind], rows), []).append(part)
        if len(by_form) > 1:
            for some in by_form.values():
                self._add(some, inputs, output if some[0] is parts[0] else DigitOutputArgument(), rows)
            return
        half = rows // 2 if rows <= PIECE else (rows // PIECE + 1) // 2 * PIECE
        if rows <= PIECE:
            stays = bool(inputs.image or output.digits) or rows == 1
        else:  # to read weights twice costs more than inputs from the caches; a roomy card is faster by halves
            stays = in_pieces and rows <= 2 * PIECE
            stays = stays and not (card().roomy and self._shape(source, parts, columns, half, forms))
        if stays:
            if not inputs.image:
                inputs = self._made_first(inputs, parts[0][0].count, rows, forms)
            shape = self._shape("MEMORY", parts, columns, rows, forms)
            assert shape is not None  # a ring for eight warps
            self._launch_of(shape, parts, inputs, output, rows, forms)
            return
        for start, count in ((0, half), (half, rows - half)):
            moved = [(m, _moved_segment(segment, start)) for m, segment in parts]
            self._add(moved, _moved_inputs(inputs, start), output.moved(start // PIECE), count)

    def _made_first(self, inputs: InputsArgument, groups: int, rows: int, forms: int) -> InputsArgument:
        """Rows of floats that have no room, as an image."""
        assert isinstance(self._x, torch.Tensor)
        if groups > 1:
            raise ValueError(f"{rows} rows of {inputs.width} columns do not fit in a block's shared memory")
        first = (inputs.x - address(self._x)) // (4 * inputs.stride)
        image = Image(rows, inputs.width, forms)
        self._made_before.append(MakeImage(self._x[first : first + rows], image, self._norm, inputs.eps))
        return inputs_argument(image, None, 0.0, inputs.width)

    def _shape(self, source: str, parts: list[_Part], columns: int, rows: int, forms: int) -> _Shape | None:
        """The first that fits: sixteen warps on a multiprocessor, of few rows in two blocks, so that one can begin
        while the other ends; a pair of blocks where one alone would have no room.  More of them would wait too long
        for each other, and more rows leave room for too few warps."""
        if rows > 2 * PIECE:
            return None
        stage, halves = max(_piece(m.kind)[0] for m, _ in parts), 1 + any(m.paired for m, _ in parts)
        paired = source == "IMAGE" and card().bulk and rows > 2 and parts[0][0].cells % 2 == 0
        paired = paired and all(segment.log_slices for _, segment in parts)
        room = card().shared_limit + 1024  # which every block takes besides
        counts = ((2, 8), (1, 16), (1, 8)) if rows <= 4 else ((1, 16), (2, 8), (1, 8))
        for stages in range(self._stages, 0, -1):
            for blocks, warps in counts if source != "MEMORY" else ((1, 8),):
                for depth, log_cluster in product((4,) if rows <= 2 else (2, 1), (0, 1) if paired else (0,)):
                    pieces, own = -(-rows // PIECE), columns >> log_cluster
                    held = pieces * input_bytes(own, min(rows, PIECE), forms) if source != "MEMORY" else 0
                    shared = SCRATCH + held + depth * warps * halves * rows * 64 + warps * stages * stage
                    if blocks * (shared + 1024) <= room:
                        few = (blocks, warps, depth, log_cluster)
                        return _Shape(source, *few, stages, stage, halves, shared)
        return None

    def _launch_of(
        self, shape: _Shape, parts: list[_Part], inputs: InputsArgument, output: DigitOutputArgument, rows: int,
        forms: int,
    ) -> None:  # fmt: skip
        first, blocks = parts[0][0], card().multiprocessors * shape.blocks
        clusters = (blocks >> shape.log_cluster) // first.count
        tiles = [(m.tiles, shape.warps >> (segment.log_slices - shape.log_cluster)) for m, segment in parts]
        clusters = min(max(1, clusters), sum(-(-n // together) for n, together in tiles))  # none without work
        argument = _Dense(
            (_Segment * 8)(*(segment for _, segment in parts)), inputs, output, len(parts), first.count,
            rows, first.cells * CELL, forms, shape.stages, shape.stage, shape.depth, shape.halves,
            address(self._ahead), 0 if self._ahead is None else self._ahead.nbytes, int(self._late),
            self._limit,
        )  # fmt: skip
        kernel = self._kernels(parts, sets_of(rows), shape).kernel(
            "dense", shape.shared, 1 << shape.log_cluster
        )
        grid = clusters * first.count << shape.log_cluster
        # Inputs that are read where they lie may be in a first-level cache as they were; but a kernel that begins
        # when the one before it has ended finds it empty.
        self._launches.append(_Launch(kernel, grid, 32 * shape.warps, argument, shape.source != "MEMORY"))

    def _kernels(self, parts: list[_Part], sets: int, shape: _Shape) -> Module:
        """The smallest kernels that do: the fewer instructions, the fewer have to be fetched, and compiled."""
        formats = sum({1 << LAYOUTS[m.kind].number for m, _ in parts})
        sizes = (f"-DDENSE_WARPS={shape.warps}", f"-DDENSE_LOG_CLUSTER={shape.log_cluster}")
        return module(
            "dense.cu",
            f"-DDENSE_FORMATS={formats}",
            f"-DDENSE_SOURCE={shape.source}",
            f"-DDENSE_SETS={sets}",
            *sizes,
        )

    def launch(self, overlap: bool = True) -> None:
        for image in self._made_before:
            image.launch(overlap)
        for each in self._launches:
            each.kernel.launch(each.grid, each.threads, (each.argument,), overlap and each.overlaps)


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
    if inputs.image:
        moved.image += row // PIECE * inputs.piece_bytes
    else:
        moved.x += row * inputs.stride * 4
    return moved
