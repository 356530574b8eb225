"""Every number and block format a weight tensor can be stored in, by name and by GGUF type id.

A block format packs `block` consecutive elements of a row into `block_bytes` bytes; plain numbers are
blocks of one.  Rows never share a block, so a row's size depends on its length alone.

    >>> Q8_0.row_bytes(4096)
    4352
    >>> by_ggml_id(39)
    WeightType(name='MXFP4', block=32, block_bytes=17, ggml_id=39)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class WeightType:
    """One storage format.  `ggml_id` is its type number in GGUF files, None where GGUF has no such type."""

    name: str
    block: int
    block_bytes: int
    ggml_id: int | None

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of `columns` elements; ValueError unless the row is a whole number of blocks."""
        blocks, remainder = divmod(columns, self.block)
        if columns < 0 or remainder:
            raise ValueError(
                f"a {self.name} row is a whole number of {self.block}-element blocks, not {columns} elements"
            )
        return blocks * self.block_bytes

    def nbytes(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor whose last dimension is the contiguous one; `()` is a single number."""
        if any(size < 0 for size in shape):
            raise ValueError(f"a tensor cannot have the shape {tuple(shape)}")
        *rows, columns = shape or (1,)
        return prod(rows) * self.row_bytes(columns)


F32 = WeightType("F32", 1, 4, 0)
F16 = WeightType("F16", 1, 2, 1)
BF16 = WeightType("BF16", 1, 2, 30)
F64 = WeightType("F64", 1, 8, 28)

I8 = WeightType("I8", 1, 1, 24)
I16 = WeightType("I16", 1, 2, 25)
I32 = WeightType("I32", 1, 4, 26)
I64 = WeightType("I64", 1, 8, 27)

Q4_0 = WeightType("Q4_0", 32, 18, 2)
Q4_1 = WeightType("Q4_1", 32, 20, 3)
Q5_0 = WeightType("Q5_0", 32, 22, 6)
Q5_1 = WeightType("Q5_1", 32, 24, 7)
Q8_0 = WeightType("Q8_0", 32, 34, 8)

Q2_K = WeightType("Q2_K", 256, 84, 10)
Q3_K = WeightType("Q3_K", 256, 110, 11)
Q4_K = WeightType("Q4_K", 256, 144, 12)
Q5_K = WeightType("Q5_K", 256, 176, 13)
Q6_K = WeightType("Q6_K", 256, 210, 14)
Q8_K = WeightType("Q8_K", 256, 292, 15)  # activations only: never the type of a stored weight

IQ1_S = WeightType("IQ1_S", 256, 50, 19)
IQ1_M = WeightType("IQ1_M", 256, 56, 29)
IQ2_XXS = WeightType("IQ2_XXS", 256, 66, 16)
IQ2_XS = WeightType("IQ2_XS", 256, 74, 17)
IQ2_S = WeightType("IQ2_S", 256, 82, 22)
IQ3_XXS = WeightType("IQ3_XXS", 256, 98, 18)
IQ3_S = WeightType("IQ3_S", 256, 110, 21)
IQ4_NL = WeightType("IQ4_NL", 32, 18, 20)
IQ4_XS = WeightType("IQ4_XS", 256, 136, 23)

TQ1_0 = WeightType("TQ1_0", 256, 54, 34)
TQ2_0 = WeightType("TQ2_0", 256, 66, 35)
MXFP4 = WeightType("MXFP4", 32, 17, 39)
NVFP4 = WeightType("NVFP4", 64, 36, 40)

# Tensors of a safetensors checkpoint.  Scales are tensors of their own there, so the FP8 and FP4 bytes
# below carry no scale and mean nothing alone.
FP8_E4M3 = WeightType("FP8_E4M3", 1, 1, None)
FP4_E2M1 = WeightType("FP4_E2M1", 2, 1, None)
E8M0 = WeightType("E8M0", 1, 1, None)
U8 = WeightType("U8", 1, 1, None)
BOOL = WeightType("BOOL", 1, 1, None)

# fmt: off
ALL_TYPES: tuple[WeightType, ...] = (
    F32, F16, BF16, F64, I8, I16, I32, I64,
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
    Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K,
    IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ4_NL, IQ4_XS,
    TQ1_0, TQ2_0, MXFP4, NVFP4,
    FP8_E4M3, FP4_E2M1, E8M0, U8, BOOL,
)
# fmt: on

_BY_NAME = {kind.name: kind for kind in ALL_TYPES}
_BY_GGML_ID = {kind.ggml_id: kind for kind in ALL_TYPES if kind.ggml_id is not None}


def by_name(name: str) -> WeightType | None:
    """The type called `name` (exactly as spelled above), or None."""
    return _BY_NAME.get(name)


def by_ggml_id(number: int) -> WeightType | None:
    """The type with this GGUF type number, or None where the number is unknown to us."""
    return _BY_GGML_ID.get(number)
