"""Weights as the native products see them: an address, a type, a shape."""

import ctypes
import itertools
import weakref
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Bytes, DeviceExpert, DeviceWeight, HostExpert, OpenTable
from penstock.backend.device import InputSquares
from penstock.native.library import instruction_set, native
from penstock.native.structs import Decode, Expert
from penstock.native.structs import Weight as Described
from penstock.weights import types
from penstock.weights.quants.encode import ANYTHING
from penstock.weights.quants.encode import DECODED as NATIVELY
from penstock.weights.tensor import TensorInfo, Weight

# The types that are multiplied as they are stored, and their numbers in products.h.  All others are decoded inside
# the product, a few rows at a time.
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
DECODED: Final = -1


class CpuWeight(DeviceWeight):
    """The native description of a weight, at `address`.  Whoever knows the address sees the weight wherever its bytes
    lie at the time."""

    def __init__(self, info: TensorInfo, squares: InputSquares | None = None):
        instruction_set()  # a bad PENSTOCK_ISA is said here and not in the middle of a product
        self.info = info
        self.stored: Weight | None = None
        out, columns = info.shape
        kind = KINDS.get(info.kind, DECODED)
        self.described = Described(None, None, kind, out, columns)
        self._squares = squares
        if squares is not None:
            self.described.squares = squares.ctypes.data
        if kind == DECODED:
            self.described.decode, self.described.number = _decode, next(_numbers)
            _decoded[self.described.number] = self
        self.address = ctypes.addressof(self.described)

    def place(self, raw: Bytes, scale: Bytes | None = None) -> None:
        self.stored = Weight(self.info, raw, scale)
        self.described.data = raw.ctypes.data
        self.described.scale = None if scale is None else scale.ctypes.data

    def row(self, number: int, out: NDArray[np.float32], address: int) -> None:
        """A row as float32 to `out`, which lies at that address: asking numpy for it takes as long as the rest."""
        if self.info.kind in NATIVELY:
            native().ps_encode(
                self.address, number, number + 1, types.F32.ggml_id, None, ANYTHING, address, 1
            )
        else:
            assert self.stored is not None
            out[...] = self.stored.rows(number, number + 1)[0]


class CpuExpert(HostExpert):
    """The native description of an expert, at `address`."""

    def __init__(self, gate: CpuWeight, up: CpuWeight, down: CpuWeight):
        width, hidden = gate.info.shape
        if up.info.shape != (width, hidden) or down.info.shape != (hidden, width):
            raise ValueError(
                f"{gate.info.name}: gate {list(gate.info.shape)}, up {list(up.info.shape)} and down "
                f"{list(down.info.shape)} do not fit each other"
            )
        self.weights, self.width = (gate, up, down), width
        self.described = Expert(gate.address, up.address, down.address)
        self.address = ctypes.addressof(self.described)

    @property
    def parts(self) -> tuple[int, ...]:
        gate, up, down = (weight.described for weight in self.weights)
        data = gate.data, up.data, down.data
        return data if gate.scale is None else (*data, gate.scale, up.scale, down.scale)


class CpuExpertTable(OpenTable):
    """Addresses of experts by number, at `address`; null where there is none."""

    def __init__(self, experts: int):
        self._places = (ctypes.c_void_p * (experts + 1))()
        self._kept: list[CpuExpert | None] = [None] * (experts + 1)
        self.address = ctypes.addressof(self._places)

    def put(self, number: int, expert: DeviceExpert) -> None:
        assert isinstance(expert, CpuExpert)
        self._places[number], self._kept[number] = expert.address, expert

    def remove(self, number: int) -> None:
        self._places[number], self._kept[number] = None, None

    def __len__(self) -> int:
        return len(self._kept)


# ── decoding, for the product ─────────────────────────────────────────────────────────────────────────────────

_numbers = itertools.count(1)
_decoded: "weakref.WeakValueDictionary[int, CpuWeight]" = weakref.WeakValueDictionary()
_failure: BaseException | None = None


def _decode_rows(number: int, first: int, last: int, out: int) -> None:
    """Called by native threads.  Nothing may be raised through them, so a failure waits for `check`."""
    global _failure
    try:
        stored = _decoded[number].stored
        assert stored is not None
        rows = stored.rows(first, last)
        flat = np.ascontiguousarray(rows, np.float32)
        ctypes.memmove(out, flat.ctypes.data, flat.nbytes)
    except BaseException as failure:
        _failure = failure


_decode = Decode(_decode_rows)


def check_decoding() -> None:
    """Raises what went wrong while weights were decoded."""
    global _failure
    if _failure is not None:
        failure, _failure = _failure, None
        raise failure
