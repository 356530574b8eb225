"""Safetensors headers and sharded folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from penstock.errors import ModelFormatError
from penstock.weights.safetensors_reader import INDEX_NAME, read_safetensors, read_safetensors_folder


def raw_file(header: Any, data: bytes = bytes(64)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_the_safetensors_package_writes_what_we_read(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1, 2], np.int64),
    }
    save_file(arrays, tmp_path / "m.safetensors", {"format": "pt"})
    found = read_safetensors(tmp_path / "m.safetensors")
    for name, array in arrays.items():
        info = found[name]
        assert info.shape == array.shape
        assert info.file.view(info.offset, info.nbytes).tobytes() == array.tobytes()


LIES: dict[str, tuple[bytes, str]] = {
    "tiny": (b"1234", "not a safetensors file"),
    "long header": ((1 << 40).to_bytes(8, "little") + b"{}", "not a safetensors file"),
    "not JSON": (raw_file(b"{nope"), "not valid JSON"),
    "deep JSON": (raw_file(b"[" * 100_000), "not valid JSON"),
    "a list": (raw_file([]), "expected a JSON object"),
    "metadata": (raw_file({"__metadata__": {"a": 1}}), "__metadata__ must map names to strings"),
    "no dtype": (raw_file({"t": {"shape": [1]}}), "expected an object with dtype"),
    "strange dtype": (raw_file({"t": entry("F7")}), "unknown dtype 'F7'"),
    "negative shape": (raw_file({"t": entry(shape=[-4])}), "lists of whole numbers"),
    "boolean shape": (raw_file({"t": entry(shape=[True])}), "lists of whole numbers"),
    "zero": (raw_file({"t": entry(shape=[0], offsets=[0, 0])}), "impossible shape"),
    "overflow": (raw_file({"t": entry(shape=[1 << 40, 1 << 40])}), "impossible shape"),
    "wrong size": (raw_file({"t": entry(shape=[5])}), r"16 bytes of data, but F32 \[5\] needs 20"),
    "past the end": (raw_file({"t": entry(offsets=[100, 116])}), "The file is incomplete"),
    "overlap": (raw_file({"t": entry(), "u": entry(offsets=[8, 24])}), "overlaps"),
    "twice": (raw_file(b'{"t": 1, "t": 2}'), "'t' appears twice"),
    "huge number": (raw_file(b'{"t": ' + b"9" * 5000 + b"}"), "not valid JSON"),
}


@pytest.mark.parametrize("name", LIES)
def test_lying_headers(name: str, tmp_path: Path) -> None:
    data, message = LIES[name]
    path = tmp_path / "m.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelFormatError, match=message):
        read_safetensors(path)


def write_shards(folder: Path, weight_map: dict[str, str]) -> None:
    save_file({"a": np.zeros(2, np.float32)}, folder / "m-1.safetensors")
    save_file({"b": np.zeros(2, np.float32)}, folder / "m-2.safetensors")
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def test_shards(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    assert sorted(read_safetensors_folder(tmp_path)) == ["a", "b"]
    (tmp_path / "m-2.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"m-2\.safetensors: the shard is missing"):
        read_safetensors_folder(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "m-2.safetensors", "b": "m-2.safetensors"}, "tensor a is missing"),
        ({"a": "../m-1.safetensors"}, "not the name of a safetensors file"),
        ({"a": "/etc/passwd"}, "not the name of a safetensors file"),
        ({"a": 5}, "must map tensor names"),
        ([], "must map tensor names"),
    ],
)
def test_lying_index(weight_map: Any, message: str, tmp_path: Path) -> None:
    write_shards(tmp_path, weight_map)
    with pytest.raises(ModelFormatError, match=message):
        read_safetensors_folder(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("x", "y"):
        save_file({"a": np.zeros(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ModelFormatError, match="is also in"):
        read_safetensors_folder(tmp_path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no \.safetensors file"):
        read_safetensors_folder(tmp_path)
