"""Importance matrices: how strongly each column of each weight is driven, measured on a text.

    imatrix = read_imatrix(Path("flash.imatrix.gguf"))
    imatrix.importance("blk.3.ffn_down_exps.weight", 2048)    # [256 experts, 2048]

Both of llama.cpp's formats are read: GGUF files with `NAME.in_sum2` [parts, columns] and `NAME.counts` for every
weight, and the older `.dat`.  The first is what is written.  A part is an expert, or a group of rows with inputs of
its own.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ModelFormatError
from penstock.weights.files import MappedFile
from penstock.weights.gguf_reader import GGUFFile, read_gguf
from penstock.weights.gguf_writer import PlannedTensor, write_gguf
from penstock.weights.quants.block import Floats
from penstock.weights.tensor import Weight
from penstock.weights.types import F32

SUMS, COUNTS = ".in_sum2", ".counts"
MAX_ENTRIES: Final = 1 << 20
MAX_NAME: Final = 1 << 12

# A column that the text did not drive is not worthless: it counts as one part in so many of the average.
LEAST: Final = 1e-4


class Entry(NamedTuple):
    """Σ input² of every column [parts, columns], and of how many inputs: [parts], or [1] for all parts."""

    sums: Floats
    counts: Floats


@dataclass(frozen=True)
class Imatrix:
    entries: Mapping[str, Entry]
    datasets: tuple[str, ...] = ()
    chunks: int = 0
    chunk_size: int = 0
    path: Path | None = None

    def importance(self, name: str, columns: int) -> Floats | None:
        """[parts, columns], on average 1 in every part, nowhere 0; None where nothing is known of the weight.

        A part that saw no input, an expert that the text never needed, gets what the others have on average: the same
        layer's inputs, after all.
        """
        entry = self.entries.get(name)
        if entry is None:
            return None
        sums = entry.sums.reshape(-1).astype(np.float64)
        if sums.size % columns:
            raise ModelFormatError(
                f"{self.path}: {name}: {sums.size:,} values, expected a multiple of the weight's {columns:,} columns"
            )
        mean = sums.reshape(-1, columns)  # [parts, columns]
        if len(entry.counts) not in (1, len(mean)):
            raise ModelFormatError(
                f"{self.path}: {name}: {len(entry.counts)} counts, expected 1 or {len(mean)}"
            )
        counts = np.broadcast_to(entry.counts.astype(np.float64), (len(mean),))
        seen = (counts > 0) & (mean.sum(axis=1) > 0)
        if not seen.any():
            return None
        mean = mean / np.where(seen, counts, 1)[:, None]
        mean[~seen] = mean[seen].mean(axis=0)
        mean /= mean.mean(axis=1, keepdims=True)
        return np.maximum(mean, LEAST).astype(np.float32)


def read_imatrix(path: Path) -> Imatrix:
    """Either format; ModelFormatError where it is none."""
    file = MappedFile(path)
    found = _from_gguf(read_gguf(path)) if file.view(0, 4).tobytes() == b"GGUF" else _from_dat(file)
    for name, entry in found.entries.items():
        for what in entry:
            if not (np.isfinite(what).all() and (what >= 0).all()):
                raise ModelFormatError(f"{path}: {name}: holds a number that is no sum of squares")
    return found


def write_imatrix(imatrix: Imatrix, path: Path) -> None:
    """In llama.cpp's GGUF format."""

    def planned(name: str, values: NDArray[np.float32]) -> PlannedTensor:
        raw = np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
        return PlannedTensor(name, F32, values.shape, lambda: [raw])

    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": list(imatrix.datasets) or ["unknown"],
        "imatrix.chunk_count": imatrix.chunks,
        "imatrix.chunk_size": imatrix.chunk_size,
    }
    tensors = []
    for name, entry in sorted(imatrix.entries.items()):
        tensors.append(planned(name + SUMS, entry.sums))
        tensors.append(planned(name + COUNTS, entry.counts.reshape(-1, 1)))
    write_gguf(path, metadata, tensors)


def _from_gguf(file: GGUFFile) -> Imatrix:
    names = {name.removesuffix(SUMS) for name in file.tensors if name.endswith(SUMS)}
    if not names:
        raise ModelFormatError(
            f"{file.path}: no importance matrix: expected tensors NAME{SUMS} and NAME{COUNTS}, found "
            f"{len(file.tensors)} others"
        )
    entries = {}
    for name in names:
        if name + COUNTS not in file.tensors:
            raise ModelFormatError(f"{file.path}: {name}{COUNTS} is missing")
        both = [file.tensors[name + suffix] for suffix in (SUMS, COUNTS)]
        for info in both:
            if info.kind is not F32:
                raise ModelFormatError(f"{file.path}: {info.name}: type {info.kind.name}, expected F32")
        sums, counts = (Weight(info).decode() for info in both)
        entries[name] = Entry(sums.reshape(-1, sums.shape[-1]), counts.reshape(-1))
    datasets = file.metadata.get("imatrix.datasets")
    return Imatrix(
        entries,
        tuple(map(str, datasets)) if isinstance(datasets, list) else (),
        chunks=_number(file, "imatrix.chunk_count"),
        chunk_size=_number(file, "imatrix.chunk_size"),
        path=file.path,
    )


def _number(file: GGUFFile, key: str) -> int:
    found = file.metadata.get(key, 0)
    return found if isinstance(found, int) else 0


class _Bytes:
    """Reads a .dat file forward and refuses to pass its end."""

    def __init__(self, file: MappedFile):
        self.file, self.at = file, 0

    def take(self, count: int) -> bytes:
        if not 0 <= count <= self.file.size - self.at:
            raise self.fail(
                f"needs {count:,} more bytes but the file ends after {self.file.size - self.at:,}"
            )
        self.at += count
        return self.file.view(self.at - count, count).tobytes()

    def i32(self) -> int:
        return int(struct.unpack("<i", self.take(4))[0])

    def text(self) -> str:
        length = self.i32()
        if not 0 <= length <= MAX_NAME:
            raise self.fail(f"a name of {length:,} bytes, expected at most {MAX_NAME:,}")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.fail("a name is not UTF-8") from None

    def fail(self, problem: str) -> ModelFormatError:
        return ModelFormatError(
            f"{self.file.path}: not an importance matrix: {problem} (at byte {self.at:,})"
        )


def _from_dat(file: MappedFile) -> Imatrix:
    """The older format: means times the number of calls, one count for all parts."""
    data = _Bytes(file)
    count = data.i32()
    if not 1 <= count <= MAX_ENTRIES:
        raise data.fail(f"{count:,} entries, expected 1 to {MAX_ENTRIES:,}")
    entries = {}
    for _ in range(count):
        name, calls, values = data.text(), data.i32(), data.i32()
        if values < 1:
            raise data.fail(f"{name}: {values} values")
        sums = np.frombuffer(data.take(4 * values), "<f4")[None]  # [1, parts · columns]
        if name in entries:
            raise data.fail(f"{name} appears twice")
        entries[name] = Entry(sums, np.array([max(calls, 1)], np.float32))
    chunks, datasets = 0, []
    if data.at < file.size:  # what follows is in newer files only
        chunks = data.i32()
        if data.at < file.size:
            datasets = [data.text()]
    return Imatrix(entries, tuple(filter(None, datasets)), max(chunks, 0), path=file.path)
