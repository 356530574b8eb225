"""Products of one to eight rows with packed matrices, as typed calls.

`Dense` is one launch: matrices that see the same inputs, which may be normed on the way in.  `GateUp` and `Down` are the
routed experts.  All three are made once, with fixed memory, and launched again and again, so that a graph can hold them.
A row's result has the same bits whatever the other rows are.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from penstock.backend.cuda.launch import SHARED_LIMIT, Kernel, module
from penstock.backend.cuda.layouts import CELL, LAYOUTS
from penstock.backend.cuda.weights import Packed, iq2_xxs_grid
from penstock.weights import types
from penstock.weights.types import WeightType

MAX_ROWS = 8
BLOCKS = 132

_FORMS = {types.F16: 4, types.BF16: 8, types.F32: 8, types.IQ2_XXS: 3, types.MXFP4: 3}  # others: digits, 1
_void, _int, _float = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float


def _address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class _Inputs(ctypes.Structure):
    _fields_ = (
        ("x", _void), ("digits", _void), ("scales", _void), ("norm", _void),
        ("stride", _int), ("width", _int), ("eps", _float),
    )  # fmt: skip


class _DigitOutput(ctypes.Structure):
    _fields_ = (("values", _void), ("digits", _void), ("scales", _void), ("counters", _void), ("cells", _int))


class _Segment(ctypes.Structure):
    _fields_ = (
        ("weights", _void), ("out", _void), ("format", _int), ("tiles", _int), ("cells", _int), ("rows", _int),
        ("stride", _int), ("paired", _int),
    )  # fmt: skip


class _Dense(ctypes.Structure):
    _fields_ = (
        ("segments", _Segment * 8), ("inputs", _Inputs), ("digits", _DigitOutput),
        ("count", _int), ("groups", _int), ("rows", _int), ("columns", _int), ("forms", _int),
        ("stages", _int), ("stage_bytes", _int), ("limit", _float),
    )  # fmt: skip


class _Routing(ctypes.Structure):
    _fields_ = (
        ("logits", _void), ("bias", _void), ("table", _void), ("tokens", _void),
        ("experts", _int), ("count", _int), ("normalize", _int), ("scale", _float),
    )  # fmt: skip


class _GateUp(ctypes.Structure):
    _fields_ = (
        ("weights", _void), ("grid", _void), ("routing", _Routing), ("inputs", _Inputs), ("digits", _DigitOutput),
        ("format", _int), ("tiles", _int), ("cells", _int), ("rows", _int), ("columns", _int), ("forms", _int),
        ("width", _int), ("stages", _int), ("stage_bytes", _int), ("limit", _float),
    )  # fmt: skip


class _Down(ctypes.Structure):
    _fields_ = (
        ("weights", _void), ("shared_weights", _void), ("grid", _void), ("routing", _Routing),
        ("digits", _void), ("scales", _void), ("shared_digits", _void), ("shared_scales", _void), ("out", _void),
        ("format", _int), ("tiles", _int), ("cells", _int), ("rows", _int), ("width", _int),
        ("stages", _int), ("stage_bytes", _int),
    )  # fmt: skip


@dataclass
class DigitVectors:
    """Vectors of `width` numbers as floats and, once the kernel that writes them has ended, as digits.

    `counted` bounds the vectors that are counted on their own: 1 where all rows come together, 64 for experts.
    """

    vectors: int
    width: int
    counted: int = 1
    values: torch.Tensor = field(init=False)  # float32 [vectors, cells · 256]
    digits: torch.Tensor = field(init=False)  # int8 [vectors, cells, 2, 256]
    scales: torch.Tensor = field(init=False)  # float32 [vectors, cells]
    counters: torch.Tensor = field(init=False)  # int32 [counted, cells]

    def __post_init__(self) -> None:
        self.values = torch.zeros(self.vectors, self.cells * CELL, device="cuda")
        self.digits = torch.zeros(self.vectors, self.cells, 2, CELL, dtype=torch.int8, device="cuda")
        self.scales = torch.zeros(self.vectors, self.cells, device="cuda")
        self.counters = torch.zeros(self.counted, self.cells, dtype=torch.int32, device="cuda")

    @property
    def cells(self) -> int:
        return -(-self.width // CELL)

    def argument(self) -> _DigitOutput:
        return _DigitOutput(
            _address(self.values),
            _address(self.digits),
            _address(self.scales),
            _address(self.counters),
            self.cells,
        )


Input = torch.Tensor | DigitVectors  # float32 [rows, width], or digits that an earlier product has made


def _inputs(x: Input, norm: torch.Tensor | None, eps: float, width: int) -> _Inputs:
    if isinstance(x, DigitVectors):
        return _Inputs(0, _address(x.digits), _address(x.scales), 0, 0, width, 0)
    return _Inputs(_address(x), 0, 0, _address(norm), x.stride(0), width, eps)


def _input_bytes(columns: int, rows: int, forms: int) -> int:
    """InputPlan.bytes of inputs.cuh"""
    planes = 2 * rows * (columns + 32) * ((forms & 1) + (forms >> 1 & 1))
    planes += 2 * rows * (2 * columns + 32) * (forms >> 2 & 1) + rows * (4 * columns + 32) * (forms >> 3 & 1)
    return planes + (columns // CELL + 1) * 32


def _forms(kinds: Sequence[WeightType], rows: int) -> int:
    forms = 0
    for kind in kinds:
        forms |= _FORMS.get(kind, 1)
    return forms if rows <= 4 else forms & ~2  # see `mend` in formats.cuh


def _fit(fixed: int, stage: int, warps: int, wanted: int) -> tuple[int, int]:
    """As many stages as are wanted and fit, and the bytes of shared memory they make with `fixed`; 0 if none fits."""
    for stages in range(wanted, 0, -1):
        total = fixed + warps * stages * stage
        if total <= SHARED_LIMIT:
            return stages, total
    return 0, 0


def _sets(rows: int) -> int:
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"products of 1 to {MAX_ROWS} rows, not {rows}")
    return 1 if rows <= 4 else 2


class Dense:
    """Matrices with the same inputs: x [rows, width] → outs [rows, rows of the matrix] each.

    norm: the weight of an RMS norm on the way in.  A matrix with `count` > 1 is grouped: group g sees columns
    g · width … of x and writes its own rows; it must be alone.  A `paired` matrix gives swiglu(gate, up).
    digits: the first matrix's output also as digits; then its out must be `digits.values`.

    One launch where the inputs fit in shared memory; else one for every form of input, or for half the rows.
    """

    def __init__(
        self, matrices: Sequence[Packed], x: Input, outs: Sequence[torch.Tensor], rows: int,
        norm: torch.Tensor | None = None, eps: float = 0.0, digits: DigitVectors | None = None, limit: float = 0.0,
        stages: int = 2, blocks: int = BLOCKS,
    ):  # fmt: skip
        first = matrices[0]
        if any(m.columns != first.columns or (m.count > 1 and len(matrices) > 1) for m in matrices):
            raise ValueError("matrices of one launch have the same columns, and a grouped one is alone")
        if first.count > 1 and isinstance(x, DigitVectors):
            raise ValueError("a grouped product takes floats")
        self._keep = (matrices, x, outs, norm, digits)
        self._launches: list[tuple[Kernel, _Dense]] = []
        self._grid = max(1, blocks // first.count) * first.count
        self.nbytes = sum(m.nbytes for m in matrices)
        inputs = _inputs(x, norm, eps, first.columns)
        segments = [
            _Segment(
                _address(m.data), _address(out), LAYOUTS[m.kind].number, m.tiles, m.cells, m.rows, out.stride(0),
                int(m.paired),
            )
            for m, out in zip(matrices, outs, strict=True)
        ]  # fmt: skip
        output = digits.argument() if digits else _DigitOutput()
        self._add(list(zip(matrices, segments, strict=True)), inputs, output, rows, limit, stages)

    def _add(
        self, parts: list[tuple[Packed, _Segment]], inputs: _Inputs, output: _DigitOutput, rows: int, limit: float,
        stages: int,
    ) -> None:  # fmt: skip
        matrices = [m for m, _ in parts]
        first, forms, columns = matrices[0], _forms([m.kind for m in matrices], rows), matrices[0].cells * CELL
        stage = max(min(LAYOUTS[m.kind].cell_bytes, 4352) for m in matrices)  # piece_bytes of formats.cuh
        fixed = 1024 + 2 * 8 * 2 * 4 * _sets(rows) * 16 * 4 + _input_bytes(columns, rows, forms)
        stages, shared = _fit(fixed, stage, 8, stages)
        if stages:
            segments = (_Segment * 8)(*(segment for _, segment in parts))
            argument = _Dense(
                segments, inputs, output, len(parts), first.count, rows, columns, forms, stages, stage, limit
            )
            self._launches.append((module("dense.cu").kernel(f"dense_{4 * _sets(rows)}", shared), argument))
            return
        by_form: dict[int, list[tuple[Packed, _Segment]]] = {}
        for part in parts:
            by_form.setdefault(_forms([part[0].kind], rows), []).append(part)
        if len(by_form) > 1:
            for some in by_form.values():
                self._add(some, inputs, output if some[0] is parts[0] else _DigitOutput(), rows, limit, 2)
            return
        if rows == 1 or output.digits:
            raise ValueError(f"{rows} rows of {columns} columns do not fit in a block's shared memory")
        for start, count in ((0, rows // 2), (rows // 2, rows - rows // 2)):
            moved = [(m, _moved_segment(segment, start)) for m, segment in parts]
            self._add(moved, _moved_inputs(inputs, start, columns // CELL), output, count, limit, 2)

    def launch(self, overlap: bool = True) -> None:
        for kernel, argument in self._launches:
            kernel.launch(self._grid, 256, (argument,), overlap)


def _moved_segment(segment: _Segment, row: int) -> _Segment:
    moved = _Segment.from_buffer_copy(segment)
    moved.out += row * segment.stride * 4
    return moved


def _moved_inputs(inputs: _Inputs, row: int, cells: int) -> _Inputs:
    moved = _Inputs.from_buffer_copy(inputs)
    if inputs.x:
        moved.x += row * inputs.stride * 4
    else:
        moved.digits += row * cells * 2 * CELL
        moved.scales += row * cells * 4
    return moved


@dataclass
class Router:
    """How a row's experts follow from its logits [rows, experts]; `table` [vocabulary, count] int32 and `tokens` [rows]
    int32 where they follow from its token."""

    logits: torch.Tensor
    count: int
    scale: float
    bias: torch.Tensor | None = None
    table: torch.Tensor | None = None
    tokens: torch.Tensor | None = None
    normalize: bool = True

    def argument(self) -> _Routing:
        return _Routing(
            _address(self.logits), _address(self.bias), _address(self.table), _address(self.tokens),
            self.logits.shape[1], self.count, int(self.normalize), self.scale,
        )  # fmt: skip


_CHOSEN = -(-(8 * 8 * 4 * 2 + 64 * 4 + 4 + 64 * 8 * 4 * 2) // 128) * 128  # sizeof(Chosen) in routing.cuh
_GRID = 256 * 16 * 8


class GateUp:
    """swiglu(gate, up) of every row's experts → acts, vectors row · count + slot.

    The kernel before the one before this must have written the router's logits (see `Down`)."""

    def __init__(
        self, weights: Packed, router: Router, x: Input, acts: DigitVectors, rows: int,
        norm: torch.Tensor | None = None, eps: float = 0.0, limit: float = 10.0, stages: int = 3, blocks: int = BLOCKS,
    ):  # fmt: skip
        kind, columns = weights.kind, weights.cells * CELL
        forms, stage = _forms([kind], rows), 2 * LAYOUTS[kind].cell_bytes
        fixed = 1024 + _CHOSEN + 2 * 16 * 2 * 4 * _sets(rows) * 16 * 4 + _input_bytes(columns, rows, forms)
        fixed += _GRID if kind is types.IQ2_XXS else 0
        stages, shared = _fit(fixed, stage, 16, stages)
        if not stages:
            raise ValueError(f"{rows} rows of {columns} columns do not fit in a block's shared memory")
        grid = iq2_xxs_grid()
        self._argument = _GateUp(
            _address(weights.data), _address(grid), router.argument(), _inputs(x, norm, eps, weights.columns),
            acts.argument(), LAYOUTS[kind].number, weights.tiles, weights.cells, rows, columns, forms, weights.rows,
            stages, stage, limit,
        )  # fmt: skip
        self._keep = (weights, router, x, acts, norm, grid)
        self._grid = blocks
        self._kernel = module("experts.cu").kernel(f"gate_up_{kind.name.lower()}_{4 * _sets(rows)}", shared)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 512, (self._argument,), overlap)


class Down:
    """out [rows, width] = the routed experts' outputs, weighted, plus the shared expert's.

    It reads the router's logits before it waits for the kernel before it, which must be `GateUp`."""

    def __init__(
        self, weights: Packed, router: Router, acts: DigitVectors, out: torch.Tensor, rows: int,
        shared: Packed | None = None, shared_acts: DigitVectors | None = None, stages: int = 2, blocks: int = BLOCKS,
    ):  # fmt: skip
        kind, sets = weights.kind, _sets(rows)
        cell = LAYOUTS[kind].cell_bytes
        stage = max(4352, cell)
        fixed = 1024 + _CHOSEN + 2 * 8 * 4 * sets * 16 * 4 + (_GRID if kind is types.IQ2_XXS else 0)
        stages, size = _fit(fixed, stage, 8, stages)
        grid = iq2_xxs_grid()
        self._argument = _Down(
            _address(weights.data), _address(shared.data if shared else None), _address(grid), router.argument(),
            _address(acts.digits), _address(acts.scales), _address(shared_acts.digits if shared_acts else None),
            _address(shared_acts.scales if shared_acts else None), _address(out), LAYOUTS[kind].number, weights.tiles,
            weights.cells, rows, weights.rows, stages, stage,
        )  # fmt: skip
        self._keep = (weights, router, acts, out, shared, shared_acts, grid)
        self._grid = blocks
        self._kernel = module("experts.cu").kernel(f"down_{kind.name.lower()}_{4 * sets}", size)

    def launch(self, overlap: bool = True) -> None:
        self._kernel.launch(self._grid, 256, (self._argument,), overlap)
