"""GGUF v2/v3: metadata and tensor directory of one file.

A header is outside data: every count, length and offset is checked against the bytes that are really there
before anything is allocated, so that a damaged or hostile file costs an error message and no memory.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelFormatError
from penstock.weights.files import MappedFile
from penstock.weights.tensor import TensorInfo, check_disjoint
from penstock.weights.types import by_ggml_id

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MAX_DIMENSIONS: Final = 4
MAX_ELEMENTS: Final = 1 << 48  # far past any real tensor, far below overflow
MAX_ENTRIES: Final = 1 << 20  # metadata entries or tensors in one file
MAX_STRINGS: Final = 1 << 22  # strings in one metadata array: a vocabulary has about 2^17
MAX_STRING: Final = 1 << 26  # bytes of one string: a chat template has about 2^14

STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: Final[dict[int, str]] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    BOOL: "<u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}  # GGUF value type → numpy type


@dataclass(frozen=True)
class GGUFFile:
    """What the header of one file says.  `metadata` values are int, float, bool, str, numpy arrays of numbers
    and lists of strings; tensor shapes are row-major, the contiguous dimension last."""

    path: Path
    version: int
    alignment: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


class _Cursor:
    """Reads forward through the header and refuses to pass its end."""

    def __init__(self, file: MappedFile):
        self.path, self.bytes, self.size, self.at = file.path, file.bytes, file.size, 0
        self.what = "header"

    def fail(self, problem: str) -> ModelFormatError:
        return ModelFormatError(f"{self.path}: {self.what}: {problem} (at byte {self.at:,})")

    def take(self, count: int) -> NDArray[np.uint8]:
        if count > self.size - self.at:
            raise self.fail(f"needs {count:,} more bytes but the file ends after {self.size - self.at:,}")
        view = self.bytes[self.at : self.at + count]
        self.at += count
        return view

    def u32(self) -> int:
        return int.from_bytes(self.take(4).tobytes(), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8).tobytes(), "little")

    def string(self, limit: int = MAX_STRING) -> str:
        length = self.u64()
        if length > limit:
            raise self.fail(f"a string of {length:,} bytes, expected at most {limit:,}")
        try:
            return self.take(length).tobytes().decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"a string is not UTF-8: {error}") from None

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        if kind not in SCALARS:
            raise self.fail(f"unknown value type {kind}, expected 0 to 12")
        value = self.take(int(SCALARS[kind][2])).view(SCALARS[kind])[0].item()
        return bool(value) if kind == BOOL else value

    def array(self) -> Any:
        kind, count = self.u32(), self.u64()
        if kind == STRING:
            if count > min(MAX_STRINGS, (self.size - self.at) // 8):
                raise self.fail(f"an array of {count:,} strings does not fit the file")
            return [self.string() for _ in range(count)]
        if kind == ARRAY:
            raise self.fail("arrays inside arrays are not used by any model file")
        if kind not in SCALARS:
            raise self.fail(f"unknown array element type {kind}, expected 0 to 12")
        width = int(SCALARS[kind][2])
        if count > (self.size - self.at) // width:
            raise self.fail(f"an array of {count:,} elements does not fit the file")
        values = self.take(count * width).view(SCALARS[kind])
        return values.astype(bool) if kind == BOOL else values


def read_gguf(path: Path) -> GGUFFile:
    """Parses and validates the header of one GGUF file.  Raises ModelFormatError; reads no tensor data."""
    file = MappedFile(path)
    cursor = _Cursor(file)
    if file.size < 24 or cursor.take(4).tobytes() != MAGIC:
        raise ModelFormatError(f"{path}: not a GGUF file (the first four bytes are not 'GGUF')")
    version = cursor.u32()
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        hint = " (a big-endian file)" if swapped in VERSIONS else ""
        raise ModelFormatError(f"{path}: GGUF version {version}{hint}, expected 2 or 3")
    tensor_count, entry_count = cursor.u64(), cursor.u64()
    for count, what in ((tensor_count, "tensors"), (entry_count, "metadata entries")):
        if count > min(MAX_ENTRIES, file.size):
            raise ModelFormatError(f"{path}: the header claims {count:,} {what}, more than the file can hold")

    metadata: dict[str, Any] = {}
    for number in range(entry_count):
        cursor.what = f"metadata entry {number}"
        key = cursor.string(limit=1 << 16)
        cursor.what = f"metadata {key!r}"
        if key in metadata:
            raise cursor.fail("the key appears twice")
        metadata[key] = cursor.value(cursor.u32())

    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise ModelFormatError(f"{path}: general.alignment is {alignment!r}, expected a power of two")

    found = [_read_tensor(cursor, number) for number in range(tensor_count)]
    data_start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for name, ggml_id, shape, relative in found:
        tensors[_unique(path, name, tensors)] = _place(
            file, name, ggml_id, shape, data_start, relative, alignment
        )
    check_disjoint(tensors.values())
    return GGUFFile(path, version, alignment, metadata, tensors)


def _unique(path: Path, name: str, seen: dict[str, TensorInfo]) -> str:
    if name in seen:
        raise ModelFormatError(f"{path}: tensor {name}: the name appears twice")
    return name


def _read_tensor(cursor: _Cursor, number: int) -> tuple[str, int, tuple[int, ...], int]:
    cursor.what = f"tensor {number}"
    name = cursor.string(limit=1 << 16)
    cursor.what = f"tensor {name}"
    dimensions = cursor.u32()
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.fail(f"{dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")
    # GGUF lists the contiguous dimension first; ours come last.
    shape = tuple(cursor.u64() for _ in range(dimensions))[::-1]
    return name, cursor.u32(), shape, cursor.u64()


def _place(
    file: MappedFile,
    name: str,
    ggml_id: int,
    shape: tuple[int, ...],
    start: int,
    relative: int,
    alignment: int,
) -> TensorInfo:
    kind = by_ggml_id(ggml_id)
    where = f"{file.path}: tensor {name}"
    if kind is None:
        raise ModelFormatError(f"{where}: unknown type number {ggml_id}")
    elements = 1
    for size in shape:
        elements *= size
        if size < 1 or elements > MAX_ELEMENTS:
            raise ModelFormatError(f"{where}: impossible shape {list(shape)}")
    if shape[-1] % kind.block:
        raise ModelFormatError(
            f"{where}: rows of {shape[-1]:,} values, but {kind.name} comes in blocks of {kind.block}"
        )
    if relative % alignment:
        raise ModelFormatError(f"{where}: offset {relative:,} is not a multiple of the alignment {alignment}")
    nbytes = kind.nbytes(shape)
    if start + relative + nbytes > file.size:
        raise ModelFormatError(
            f"{where}: data ends at byte {start + relative + nbytes:,} but the file has {file.size:,}. "
            "The file is incomplete; download it again."
        )
    return TensorInfo(name, kind, shape, file, start + relative, nbytes)
