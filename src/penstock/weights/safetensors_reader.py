"""Safetensors: the tensor directory of one file, or of a folder of shards with its index."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from penstock.errors import ModelFormatError
from penstock.weights.files import MappedFile
from penstock.weights.tensor import TensorInfo, check_disjoint
from penstock.weights.types import by_name

MAX_HEADER: Final = 100_000_000  # bytes; the format's own limit
MAX_ELEMENTS: Final = 1 << 48
INDEX_NAME: Final = "model.safetensors.index.json"

DTYPES: Final[dict[str, str]] = {
    "F64": "F64",
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
    "F8_E4M3": "FP8_E4M3",
    "F8_E8M0": "E8M0",
    "I8": "I8",
    "U8": "U8",
    "I16": "I16",
    "I32": "I32",
    "I64": "I64",
    "BOOL": "BOOL",
}  # dtype in the header → our type name


def parse_json(text: bytes | str, where: str) -> Any:
    """JSON from outside: duplicate keys, deep nesting and monstrous numbers are errors, not surprises."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise ModelFormatError(f"{where}: {twice!r} appears twice")
        return result

    try:
        return json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{where}: not valid JSON: {error}") from None


def read_json_file(path: Path) -> dict[str, Any]:
    """A JSON object from a small file beside the weights."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelFormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    value = parse_json(text, str(path))
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_safetensors(path: Path) -> dict[str, TensorInfo]:
    """The validated tensor directory of one file; reads no tensor data."""
    return read_safetensors_with_metadata(path)[0]


def read_safetensors_with_metadata(path: Path) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The same, with the free-form strings of the file's `__metadata__`."""
    file = MappedFile(path)
    length = int.from_bytes(file.view(0, 8).tobytes(), "little") if file.size >= 8 else -1
    if not 2 <= length <= min(MAX_HEADER, file.size - 8):
        raise ModelFormatError(
            f"{path}: not a safetensors file (header length {length:,}, file {file.size:,})"
        )
    header = parse_json(file.view(8, length).tobytes(), f"{path}: header")
    if not isinstance(header, dict):
        raise ModelFormatError(f"{path}: header: expected a JSON object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ModelFormatError(f"{path}: header: __metadata__ must map names to strings")
    tensors = {name: _place(file, name, entry, 8 + length) for name, entry in header.items()}
    check_disjoint(tensors.values())
    return tensors, metadata


def read_safetensors_folder(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint folder: shards named by the index, or the folder's safetensors files."""
    index_path = folder / INDEX_NAME
    if not index_path.exists():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelFormatError(f"{folder}: no .safetensors file and no {INDEX_NAME} in the folder")
        return _merge(read_safetensors(path) for path in files)

    weight_map = read_json_file(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelFormatError(f"{index_path}: 'weight_map' must map tensor names to file names")
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelFormatError(f"{index_path}: {name!r} is not the name of a safetensors file here")
        if not (folder / name).is_file():
            raise ModelFormatError(f"{folder / name}: the shard is missing; {INDEX_NAME} names it")
    tensors = _merge(read_safetensors(folder / name) for name in sorted(set(weight_map.values())))
    for tensor, shard in weight_map.items():
        if tensor not in tensors or tensors[tensor].file.path.name != shard:
            raise ModelFormatError(
                f"{folder / shard}: tensor {tensor} is missing; {INDEX_NAME} puts it there"
            )
    return tensors


def _merge(shards: Iterable[dict[str, TensorInfo]]) -> dict[str, TensorInfo]:
    merged: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, info in shard.items():
            if name in merged:
                raise ModelFormatError(
                    f"{info.file.path}: tensor {name} is also in {merged[name].file.path.name}"
                )
            merged[name] = info
    return merged


def _place(file: MappedFile, name: str, entry: Any, start: int) -> TensorInfo:
    where = f"{file.path}: tensor {name}"
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        raise ModelFormatError(f"{where}: expected an object with dtype, shape and data_offsets")
    kind = by_name(DTYPES.get(entry["dtype"], ""))
    if kind is None:
        raise ModelFormatError(
            f"{where}: unknown dtype {entry['dtype']!r}, expected one of {', '.join(DTYPES)}"
        )
    shape, offsets = _naturals(entry.get("shape")), _naturals(entry.get("data_offsets"))
    if shape is None or offsets is None or len(offsets) != 2 or len(shape) > 4:
        raise ModelFormatError(f"{where}: shape and data_offsets must be short lists of whole numbers")
    elements = 1
    for size in shape:
        elements *= size
        if size < 1 or elements > MAX_ELEMENTS:
            raise ModelFormatError(f"{where}: impossible shape {shape}")
    begin, end = offsets
    nbytes = kind.nbytes(shape or [1])
    if end - begin != nbytes:
        raise ModelFormatError(
            f"{where}: {end - begin:,} bytes of data, but {kind.name} {shape} needs {nbytes:,}"
        )
    if start + end > file.size:
        raise ModelFormatError(
            f"{where}: data ends at byte {start + end:,} but the file has {file.size:,}. "
            "The file is incomplete; download it again."
        )
    return TensorInfo(name, kind, tuple(shape) or (1,), file, start + begin, nbytes)


def _naturals(value: Any) -> list[int] | None:
    """The value if it is a list of whole numbers from 0, else None."""
    return value if isinstance(value, list) and all(type(i) is int and i >= 0 for i in value) else None
