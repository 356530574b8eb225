"""Weights as the native kernels see them: an address, a type, a shape."""

import ctypes
from typing import Final

from penstock.errors import PenstockError
from penstock.kernels.cpu.library import StoredExpert, StoredWeight, expect, native
from penstock.kernels.ops import Expert
from penstock.weights import types
from penstock.weights.tensor import Weight

# The types that are multiplied as they are stored, and their numbers in products.h.
KINDS: Final = {
    types.F32: 0,
    types.F16: 1,
    types.Q8_0: 8,
    types.Q2_K: 10,
    types.Q4_K: 12,
    types.IQ2_XXS: 16,
    types.BF16: 30,
    types.MXFP4: 39,
    types.FP8_E4M3: 1000,
    types.FP4_E2M1: 1001,
}


def stored_weight(weight: Weight) -> StoredWeight | None:
    """Made once and kept with the weight; None for types that have to be decoded first."""
    found = weight.prepared
    if found is None:
        number = KINDS.get(weight.kind)
        if number is None:
            return None
        _require_instruction_set()
        scale = None if weight.scale is None else weight.scale.ctypes.data
        out, columns = weight.shape
        found = weight.prepared = StoredWeight(weight.raw.ctypes.data, scale, number, out, columns)
    assert isinstance(found, StoredWeight)
    return found


class ReadyExpert:
    """An expert as the native kernels see it, with its sizes: gate and up [width, hidden], down [hidden, width]."""

    __slots__ = ("address", "hidden", "kept", "width")

    def __init__(self, structure: StoredExpert, width: int, hidden: int):
        self.kept, self.address = structure, ctypes.addressof(structure)
        self.width, self.hidden = width, hidden


def ready_expert(expert: Expert) -> ReadyExpert | None:
    """Checked and made once, and kept with the expert; None if a matrix has to be decoded first."""
    found = expert.prepared
    if found is None:
        gate, up, down = expert.gate, expert.up, expert.down
        width, hidden = gate.shape
        expect(
            tuple(up.shape) == (width, hidden) and tuple(down.shape) == (hidden, width),
            f"{gate.info.name}: gate {list(gate.shape)}, up {list(up.shape)} and down {list(down.shape)} do not "
            f"fit each other",
        )
        parts = [stored_weight(weight) for weight in (gate, up, down)]
        if None in parts:
            return None
        places = [address(part) for part in parts if part is not None]
        found = expert.prepared = ReadyExpert(StoredExpert(*places), width, hidden)
    assert isinstance(found, ReadyExpert)
    return found


def address(structure: ctypes.Structure) -> int:
    return ctypes.addressof(structure)


def instruction_set() -> str:
    """What the products of this process run on: scalar, avx2, avx512, neon or neon_dot."""
    _require_instruction_set()
    return str(native().ps_instruction_set().decode())


def _require_instruction_set() -> None:
    if native().ps_instruction_set() is None:
        raise PenstockError(
            "PENSTOCK_ISA names an instruction set that is unknown or that this processor does not have.\n"
            "Expected scalar, avx2, avx512, neon or neon_dot; leave it unset for the best one."
        )
