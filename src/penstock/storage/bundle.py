"""Tensors that are read together: which stretches of the files hold them, and where each one lands in memory.

Direct reads begin and end at whole blocks of the file, which tensors do not.  So a stretch is read with the rest of
its first and last block, straight to where it stays, and a tensor begins somewhere behind the start of its stretch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.storage.reader import Piece, Reader, aligned
from penstock.weights.tensor import TensorInfo, Weight

NEAR: Final = (
    16 << 10
)  # bytes that may lie unused between two tensors of one stretch: less than a read of its own costs

Bytes = NDArray[np.uint8]


class Stretch(NamedTuple):
    """`length` bytes of a file, whole blocks, of which `needed` must exist, and where in memory they go."""

    path: Path
    offset: int
    length: int
    needed: int
    at: int


@dataclass(frozen=True)
class Bundle:
    """Where some tensors lie in their files and in `nbytes` bytes of memory."""

    infos: tuple[TensorInfo, ...]
    stretches: tuple[Stretch, ...]
    places: dict[tuple[Path, int], int]  # (file, offset) of a tensor → where it begins in memory
    nbytes: int

    @staticmethod
    def of(infos: Sequence[TensorInfo]) -> "Bundle":
        parts = [part for info in infos for part in (info, info.scale) if part is not None]
        parts.sort(key=lambda part: (str(part.file.path), part.offset))
        groups: list[list[TensorInfo]] = []
        for part in parts:
            last = groups[-1][-1] if groups else None
            if last is not None and last.file is part.file and part.offset - last.end <= NEAR:
                groups[-1].append(part)
            else:
                groups.append([part])
        stretches, places, at = [], {}, 0
        for group in groups:
            path, start, end = group[0].file.path, group[0].offset, group[-1].end
            offset, length, skip = aligned(start, end - start)
            stretches.append(Stretch(path, offset, length, skip + end - start, at))
            for part in group:
                places[path, part.offset] = at + part.offset - offset
            at += length
        return Bundle(tuple(infos), tuple(stretches), places, at)

    def pieces(self, reader: Reader, address: int) -> Iterator[Piece]:
        """The reads that bring it to memory at `address`."""
        for stretch in self.stretches:
            file, to = reader.open(stretch.path), address + stretch.at
            yield Piece(file, stretch.offset, stretch.length, stretch.needed, to)

    def weight(self, info: TensorInfo, memory: Bytes) -> Weight:
        """One of the tensors, in this memory [nbytes]."""
        return Weight(info, *self.views(info, memory))

    def views(self, info: TensorInfo, memory: Bytes) -> tuple[Bytes, Bytes | None]:
        """Where one of the tensors, and its scales, lie in this memory [nbytes]."""
        return self._view(info, memory), None if info.scale is None else self._view(info.scale, memory)

    def _view(self, info: TensorInfo, memory: Bytes) -> Bytes:
        at = self.places[info.file.path, info.offset]
        return memory[at : at + info.nbytes]
