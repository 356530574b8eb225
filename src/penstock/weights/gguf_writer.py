"""Writes GGUF v3 in one pass: the directory is laid out first, then the data streams through.

The file appears under its name only when it is complete; until then it is `NAME.part`, removed on failure.
"""

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import OptionError
from penstock.weights.direct_file import DirectFile
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

Chunks = Iterable[NDArray[np.uint8]]


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


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Iterable[PlannedTensor],
    progress: Callable[[int], None] = lambda _: None,
) -> None:
    """Writes one file.  Plain ints are stored as u32 (u64 when larger), floats as f32; give a numpy scalar
    for another width.  `progress` is called with the number of bytes just written."""
    planned = list(tensors)
    header = _header(metadata, planned)
    part = path.with_name(path.name + ".part")
    try:
        with DirectFile(part) as sink:
            sink.write(header)
            for tensor in planned:
                _write_tensor(sink, tensor, progress)
        os.replace(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OptionError(f"{path}: cannot be written: {error.strerror or error}") from error
        raise


def write_outline(path: Path, metadata: Mapping[str, Any], tensors: Iterable[PlannedTensor]) -> None:
    """Writes only the header, before a hole in place of the tensors: the size of a model, and nothing on the disk."""
    planned = list(tensors)
    header = _header(metadata, planned)
    data = sum(-(-tensor.nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT for tensor in planned)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + data)


def _write_tensor(sink: DirectFile, tensor: PlannedTensor, progress: Callable[[int], None]) -> None:
    written = 0
    for chunk in tensor.chunks():
        sink.write(chunk)
        written += chunk.nbytes
        progress(chunk.nbytes)
    if written != tensor.nbytes:
        raise AssertionError(f"{tensor.name}: {written:,} bytes were made, {tensor.nbytes:,} planned")
    sink.write(bytes(-written % DEFAULT_ALIGNMENT))


def _header(metadata: Mapping[str, Any], tensors: list[PlannedTensor]) -> bytes:
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
        offset += -(-tensor.nbytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    return bytes(out) + bytes(-len(out) % DEFAULT_ALIGNMENT)


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
