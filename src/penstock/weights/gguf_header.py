"""The header of a GGUF v3 file: metadata, and where each tensor will lie."""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.weights.gguf_reader import ARRAY, BOOL, DEFAULT_ALIGNMENT, MAGIC, STRING
from penstock.weights.types import WeightType

_NUMPY_TYPES = {
    "uint8": 0,
    "int8": 1,
    "uint16": 2,
    "int16": 3,
    "uint32": 4,
    "int32": 5,
    "float32": 6,
    "bool": BOOL,
    "uint64": 10,
    "int64": 11,
    "float64": 12,
}

Bytes = NDArray[np.uint8]


class Piece(NamedTuple):
    """Bytes that are made when they are wanted."""

    nbytes: int
    make: Callable[[], Bytes]

    @classmethod
    def of(cls, data: bytes | Bytes) -> "Piece":
        """Of bytes that are there."""
        flat = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        return cls(flat.nbytes, lambda: flat)


Chunks = Iterable[Bytes | Piece]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to be written: `chunks()` yields its bytes in order, `kind.nbytes(shape)` of them in all."""

    name: str
    kind: WeightType
    shape: tuple[int, ...]
    chunks: Callable[[], Chunks]

    @property
    def nbytes(self) -> int:
        return self.kind.nbytes(self.shape)


def header_of(metadata: Mapping[str, Any], tensors: Sequence[PlannedTensor]) -> bytes:
    """Everything before the data, padded to where that begins."""
    out = bytearray(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        out += _string(key) + _value(value)
    offset = 0
    for tensor in tensors:
        if tensor.kind.ggml_id is None:
            raise AssertionError(f"{tensor.name}: {tensor.kind.name} does not exist in GGUF")
        out += _string(tensor.name)
        out += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
        out += struct.pack("<IQ", tensor.kind.ggml_id, offset)
        offset += tensor.nbytes + padding(tensor.nbytes)
    return bytes(out) + bytes(padding(len(out)))


def padding(nbytes: int) -> int:
    """Bytes behind so many, up to where the next tensor may begin."""
    return -nbytes % DEFAULT_ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, list | tuple) and value and isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    if isinstance(value, int) and not isinstance(value, bool):
        value = np.int32(value) if value < 0 else np.uint32(value) if value < 1 << 32 else np.uint64(value)
    elif isinstance(value, float):
        value = np.float32(value)
    elif isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
        # Readers that check no types take arrays of integers for int32.
        value = np.array(value, np.int32 if max(map(abs, value)) < 1 << 31 else np.int64)
    values = np.asarray(value)
    kind = _NUMPY_TYPES[values.dtype.name]
    data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    if values.ndim == 0:
        return struct.pack("<I", kind) + data
    return struct.pack("<IIQ", ARRAY, kind, len(values)) + data
