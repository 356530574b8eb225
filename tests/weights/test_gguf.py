"""GGUF reading and writing: what is written comes back, and lying headers are refused."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import ModelFormatError, OptionError
from penstock.weights.gguf_reader import read_gguf
from penstock.weights.gguf_writer import PlannedTensor, write_gguf
from penstock.weights.types import F32, MXFP4, Q8_0

METADATA: dict[str, Any] = {
    "general.architecture": "deepseek4",
    "int": 7,
    "large": 1 << 40,
    "negative": -3,
    "float": 0.5,
    "yes": True,
    "text": "full-width ｜ bar",
    "strings": ["a", "", "ü"],
    "numbers": np.array([1, 2, 3], np.int32),
    "halves": np.array([0.5, 1.5], np.float64),
    "flags": np.array([True, False]),
    "u64": np.uint64(5),
    "f64": np.float64(0.25),
    "i64": np.int64(-9),
    "u8": np.uint8(200),
}


def planned(name: str, kind: Any, shape: tuple[int, ...], seed: int = 0) -> PlannedTensor:
    data = np.random.default_rng(seed).integers(0, 256, kind.nbytes(shape), dtype=np.uint8)
    return PlannedTensor(name, kind, shape, lambda: [data[:10], data[10:]])


def test_round_trip(tmp_path: Path) -> None:
    tensors = [
        planned("a", F32, (3, 5)),
        planned("b.weight", Q8_0, (2, 4, 64), 1),
        planned("c", MXFP4, (1, 32), 2),
    ]
    path = tmp_path / "m.gguf"
    seen: list[int] = []
    write_gguf(path, METADATA, tensors, seen.append)
    file = read_gguf(path)
    assert sum(seen) == sum(tensor.nbytes for tensor in tensors)
    assert file.metadata.keys() == METADATA.keys()
    for key, value in METADATA.items():
        found = file.metadata[key]
        if isinstance(value, np.ndarray):
            assert found.tolist() == value.tolist()
        else:
            assert found == value
    assert file.metadata["yes"] is True
    for tensor in tensors:
        info = file.tensors[tensor.name]
        assert (info.kind, info.shape) == (tensor.kind, tensor.shape)
        assert info.offset % 32 == 0
        stored = np.concatenate(list(tensor.chunks()))
        assert np.array_equal(info.file.view(info.offset, info.nbytes), stored)


def test_the_gguf_package_reads_what_we_write(tmp_path: Path) -> None:
    from gguf import GGUFReader

    path = tmp_path / "m.gguf"
    write_gguf(path, METADATA, [planned("b.weight", Q8_0, (2, 4, 64), 1)])
    reader = GGUFReader(path)
    assert reader.tensors[0].name == "b.weight"
    assert reader.tensors[0].shape.tolist() == [64, 4, 2]
    assert reader.get_field("text").contents() == METADATA["text"]
    assert reader.get_field("strings").contents() == METADATA["strings"]


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, METADATA, [planned("a", F32, (3,))])
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    path.write_bytes(data)
    assert read_gguf(path).version == 2


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Any:
        yield np.zeros(4, np.uint8)
        raise RuntimeError("source went away")

    with pytest.raises(RuntimeError):
        write_gguf(tmp_path / "m.gguf", {}, [PlannedTensor("a", F32, (8,), broken)])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionError, match="cannot be written"):
        write_gguf(tmp_path / "missing" / "m.gguf", {}, [])


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def file_bytes(
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    entries: bytes = b"",
    entry_count: int = 0,
    tensors: bytes = b"",
    tensor_count: int = 0,
    data: bytes = bytes(4096),
) -> bytes:
    head = magic + struct.pack("<IQQ", version, tensor_count, entry_count) + entries + tensors
    return head + bytes(-len(head) % 32) + data


def tensor(name: str, shape: list[int], kind: int, offset: int, dims: int | None = None) -> bytes:
    count = len(shape) if dims is None else dims
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", count, *shape, kind, offset)


LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "short": (b"GGUF\x03", "not a GGUF file"),
    "other format": (file_bytes(magic=b"GGML"), "not a GGUF file"),
    "version 1": (file_bytes(version=1), "GGUF version 1, expected 2 or 3"),
    "big-endian": (file_bytes(version=3 << 24), "a big-endian file"),
    "many tensors": (file_bytes(tensor_count=1 << 60), "claims 1,152,921,504,606,846,976 tensors"),
    "many entries": (file_bytes(entry_count=1 << 40), "metadata entries, more than the file can hold"),
    "long key": (file_bytes(entries=struct.pack("<Q", 1 << 50), entry_count=1), "a string of"),
    "key past the end": (
        file_bytes(entries=struct.pack("<Q", 60000), entry_count=1, data=b""),
        "needs 60,000 more",
    ),
    "not UTF-8": (file_bytes(entries=struct.pack("<Q", 2) + b"\xff\xfe", entry_count=1), "not UTF-8"),
    "unknown value type": (
        file_bytes(entries=text("k") + struct.pack("<I", 99), entry_count=1),
        "unknown value type 99",
    ),
    "twice the same key": (
        file_bytes(entries=(text("k") + struct.pack("<II", 4, 1)) * 2, entry_count=2),
        "metadata 'k': the key appears twice",
    ),
    "huge array": (
        file_bytes(entries=text("k") + struct.pack("<IIQ", 9, 4, 1 << 60), entry_count=1),
        "an array of 1,152,921,504,606,846,976 elements",
    ),
    "huge string array": (
        file_bytes(entries=text("k") + struct.pack("<IIQ", 9, 8, 1 << 40), entry_count=1),
        "strings does not fit the file",
    ),
    "nested array": (
        file_bytes(entries=text("k") + struct.pack("<IIQ", 9, 9, 1), entry_count=1),
        "arrays inside arrays",
    ),
    "alignment": (
        file_bytes(entries=text("general.alignment") + struct.pack("<II", 4, 48), entry_count=1),
        "general.alignment is 48, expected a power of two",
    ),
    "no dimensions": (file_bytes(tensors=tensor("t", [], 0, 0), tensor_count=1), "0 dimensions"),
    "many dimensions": (file_bytes(tensors=tensor("t", [1], 0, 0, dims=99), tensor_count=1), "99 dimensions"),
    "empty tensor": (file_bytes(tensors=tensor("t", [0], 0, 0), tensor_count=1), "impossible shape"),
    "overflow": (
        file_bytes(tensors=tensor("t", [1 << 40, 1 << 40], 0, 0), tensor_count=1),
        "impossible shape",
    ),
    "unknown type": (file_bytes(tensors=tensor("t", [32], 77, 0), tensor_count=1), "unknown type number 77"),
    "broken blocks": (
        file_bytes(tensors=tensor("t", [33], 8, 0), tensor_count=1),
        "Q8_0 comes in blocks of 32",
    ),
    "unaligned": (
        file_bytes(tensors=tensor("t", [32], 0, 8), tensor_count=1),
        "not a multiple of the alignment 32",
    ),
    "past the end": (file_bytes(tensors=tensor("t", [2048], 0, 0), tensor_count=1), "The file is incomplete"),
    "far past the end": (
        file_bytes(tensors=tensor("t", [32], 0, 1 << 62), tensor_count=1),
        "The file is incomplete",
    ),
    "same name": (
        file_bytes(tensors=tensor("t", [8], 0, 0) + tensor("t", [8], 0, 32), tensor_count=2),
        "tensor t: the name appears twice",
    ),
    "overlap": (
        file_bytes(tensors=tensor("t", [16], 0, 0) + tensor("u", [16], 0, 32), tensor_count=2),
        "overlaps",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_lying_headers(name: str, tmp_path: Path) -> None:
    data, message = LIES[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match=message) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)


def test_unreadable_paths(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="found a folder"):
        read_gguf(tmp_path)
    with pytest.raises(ModelFormatError, match="cannot be read: No such file"):
        read_gguf(tmp_path / "nothing.gguf")
