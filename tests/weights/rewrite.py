"""Copies of GGUF files with something changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.weights.gguf_reader import read_gguf
from penstock.weights.gguf_writer import PlannedTensor, write_gguf
from penstock.weights.tensor import TensorInfo

Metadata = dict[str, Any]
Tensors = dict[str, PlannedTensor]


def planned(name: str, info: TensorInfo) -> PlannedTensor:
    """A tensor of another file, to be written under `name`."""
    return PlannedTensor(name, info.kind, info.shape, lambda: [info.file.view(info.offset, info.nbytes)])


def load(path: Path) -> tuple[Metadata, Tensors]:
    file = read_gguf(path)
    return dict(file.metadata), {name: planned(name, info) for name, info in file.tensors.items()}


def rewrite(source: Path, destination: Path, edit: Callable[[Metadata, Tensors], None]) -> Path:
    """Writes `source` again with its metadata and tensors edited in place."""
    metadata, tensors = load(source)
    edit(metadata, tensors)
    write_gguf(destination, metadata, tensors.values())
    return destination


def split(source: Path, folder: Path, count: int) -> list[Path]:
    """The same model in `count` files, as llama.cpp splits it: metadata in the first, tensors dealt out."""
    metadata, tensors = load(source)
    paths = [folder / f"m-{number + 1:05d}-of-{count:05d}.gguf" for number in range(count)]
    items = list(tensors.values())
    per_file = -(-len(items) // count)
    for number, path in enumerate(paths):
        keys = {"split.no": number, "split.count": count, "split.tensors.count": len(items)}
        write_gguf(path, {**(metadata if number == 0 else {}), **keys}, items[number * per_file :][:per_file])
    return paths
