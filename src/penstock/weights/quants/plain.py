"""Plain floating-point numbers: F32, F16, BF16.  The last is the upper half of a float32."""

import numpy as np

from penstock.weights import types
from penstock.weights.quants.block import BlockFormat, Blocks, Floats

F32 = np.dtype("<f4")
F16 = np.dtype("<f2")
BF16 = np.dtype("<u2")


def decode_float(numbers: Blocks, out: Floats) -> None:
    out[:, 0] = numbers


def decode_bf16(numbers: Blocks, out: Floats) -> None:
    bits = out.view(np.uint32)
    bits[:, 0] = numbers
    bits <<= 16


FORMATS = {
    types.F32: BlockFormat(F32, decode_float),
    types.F16: BlockFormat(F16, decode_float),
    types.BF16: BlockFormat(BF16, decode_bf16),
}
