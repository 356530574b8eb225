"""What goes into a product: floats, digits that an earlier product has made, or an image of all forms.

The forms and their layout are those of kernels/inputs.cuh.
"""

import ctypes
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import torch

from penstock.backend.cuda.device import card
from penstock.backend.cuda.layouts import CELL, FP8_128
from penstock.weights import types
from penstock.weights.types import WeightType

MAX_ROWS = 32  # of a launch
PIECE = 8  # more rows lie in pieces of eight, one behind the other
_FEW = 2  # rows of experts.py
SCRATCH = 1024 + 2 * 8 * 64 * 4  # bytes of shared memory: barriers, and what `prepare` of inputs.cuh needs

DIGITS, NEGATED, HALVES, FLOATS = 1, 2, 4, 8
_FORMS = {
    types.F16: HALVES,
    FP8_128: HALVES,
    types.BF16: FLOATS,
    types.F32: FLOATS,
    types.IQ2_XXS: DIGITS | NEGATED,
    types.MXFP4: DIGITS | NEGATED,
}  # all others: DIGITS

VOID, INT, FLOAT, LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float, ctypes.c_int64


def address(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def few_rows() -> int:
    """Rows, at most, that experts.py takes: they have room for inputs negated, and for the shared expert along with
    the others.  None on cards that have less shared memory, or no bulk copies."""
    return _FEW if card().bulk and card().roomy else 0


class InputsArgument(ctypes.Structure):
    _fields_ = (
        ("x", VOID), ("norm", VOID), ("image", VOID), ("image_forms", INT), ("piece_bytes", INT),
        ("stride", INT), ("width", INT), ("eps", FLOAT),
    )  # fmt: skip


class DigitOutputArgument(ctypes.Structure):
    _fields_ = (
        ("values", VOID), ("digits", VOID), ("scales", VOID), ("counters", VOID), ("cells", INT),
        ("piece_bytes", INT), ("vector_bytes", INT), ("cell_bytes", INT), ("plane_bytes", INT),
        ("piece_scales", INT), ("vector_scales", INT), ("cell_scales", INT),
    )  # fmt: skip

    def moved(self, pieces: int) -> "DigitOutputArgument":
        """So many pieces of vectors later."""
        moved = DigitOutputArgument.from_buffer_copy(self)
        if self.digits:
            moved.values += pieces * PIECE * self.cells * CELL * 4
            moved.digits += pieces * self.piece_bytes
            moved.scales += pieces * self.piece_scales * 4
        return moved


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

    def part(self, first: int, last: int) -> "DigitVectors":
        """Vectors [first, last), in the same memory."""
        part = copy(self)
        part.vectors, part.values = last - first, self.values[first:last]
        part.digits, part.scales = self.digits[first:last], self.scales[first:last]
        return part

    def argument(self) -> DigitOutputArgument:
        return DigitOutputArgument(
            address(self.values), address(self.digits), address(self.scales), address(self.counters), self.cells,
            PIECE * self.cells * 2 * CELL, self.cells * 2 * CELL, 2 * CELL, CELL, PIECE * self.cells, self.cells, 1,
        )  # fmt: skip


@dataclass
class Image:
    """Rows in all the forms of `forms`, as blocks want them in shared memory: an image for each group of columns, and
    for each piece of rows."""

    rows: int
    width: int
    forms: int
    groups: int = 1
    data: torch.Tensor = field(init=False)  # uint8 [pieces, groups, bytes]

    def __post_init__(self) -> None:
        if self.rows > PIECE and self.rows % PIECE:
            raise ValueError(f"an image of {self.rows} rows: more than {PIECE} come in whole pieces")
        size = input_bytes(self.columns, min(self.rows, PIECE), self.forms)
        self.data = torch.zeros(self.pieces, self.groups, size, dtype=torch.uint8, device="cuda")

    @property
    def pieces(self) -> int:
        return -(-self.rows // PIECE)

    @property
    def piece_bytes(self) -> int:
        return self.groups * self.data.shape[2]

    @property
    def columns(self) -> int:
        return -(-self.width // CELL) * CELL


@dataclass
class DigitImage:
    """Rows as floats and, once the kernel that writes them has ended, as an image of digits."""

    rows: int
    width: int
    values: torch.Tensor = field(init=False)  # float32 [rows, columns]
    image: Image = field(init=False)
    counters: torch.Tensor = field(init=False)  # int32 [cells]

    def __post_init__(self) -> None:
        self.image = Image(self.rows, self.width, DIGITS)
        self.values = torch.zeros(self.rows, self.image.columns, device="cuda")
        self.counters = torch.zeros(self.image.columns // CELL, dtype=torch.int32, device="cuda")

    def argument(self) -> DigitOutputArgument:
        columns, at = self.image.columns, address(self.image.data)
        plane = columns + 32
        piece = self.image.piece_bytes
        return DigitOutputArgument(
            address(self.values), at, at + 2 * min(self.rows, PIECE) * plane, address(self.counters),
            columns // CELL, piece, 2 * plane, CELL, plane, piece // 4, 1, PIECE,
        )  # fmt: skip


Input = torch.Tensor | Image  # a tensor: float32 [rows, width]


def inputs_argument(x: Input, norm: torch.Tensor | None, eps: float, width: int) -> InputsArgument:
    if isinstance(x, Image):
        return InputsArgument(0, 0, address(x.data), x.forms, x.piece_bytes, 0, width, 0)
    return InputsArgument(address(x), address(norm), 0, 0, 0, x.stride(0), width, eps)


def input_bytes(columns: int, rows: int, forms: int) -> int:
    """InputPlan.bytes of inputs.cuh, for at most a piece of rows"""
    digits, halves, floats = (
        2 * rows * (columns + 32),
        2 * rows * (2 * columns + 32),
        rows * (4 * columns + 32),
    )
    size = digits * (bool(forms & DIGITS) + bool(forms & NEGATED))
    size += halves * bool(forms & HALVES) + floats * bool(forms & FLOATS)
    return size + (columns // CELL + 1) * 32


def forms_of(kinds: Sequence[WeightType], rows: int) -> int:
    forms = 0
    for kind in kinds:
        forms |= _FORMS.get(kind, DIGITS)
    return forms if rows <= 4 else forms & ~NEGATED  # see `mend` in formats.cuh


def fit(fixed: int, stage: int, warps: int, wanted: int) -> tuple[int, int]:
    """As many stages as are wanted and fit, and the bytes of shared memory they make with `fixed`; 0 if none fits."""
    for stages in range(wanted, 0, -1):
        total = fixed + warps * stages * stage
        if total <= card().shared_limit:
            return stages, total
    return 0, 0


def sets_of(rows: int) -> int:
    """Rows go through the tensor cores by fours, and all of many at once."""
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"products of 1 to {MAX_ROWS} rows, not {rows}")
    return next(sets for sets in (1, 2, 4, 8) if rows <= 4 * sets)
