"""Where every routed expert's bytes are, and what they become once they are in memory."""

import mmap
from functools import cached_property
from typing import Final

from penstock.errors import ModelFormatError
from penstock.storage.bundle import NEAR, Bundle, Bytes
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.tensor import TensorInfo, Weight

PARTS: Final = ("gate", "up", "down")


class ExpertSource:
    """The experts of a checkpoint, numbered: key = number of the block · experts per block + number of the expert."""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint, self.path = checkpoint, checkpoint.path
        self.experts = checkpoint.config.experts
        self.blocks = checkpoint.blocks
        self._numbers = {block: number for number, block in enumerate(self.blocks)}
        self._bundles: dict[int, Bundle] = {}  # made when first used

    def number(self, block: str) -> int:
        return self._numbers[block]

    def key(self, block: str, expert: int) -> int:
        return self._numbers[block] * self.experts + expert

    def name(self, key: int) -> str:
        block, expert = divmod(key, self.experts)
        return f"expert {expert} of {self.blocks[block]}"

    def infos(self, key: int) -> list[TensorInfo]:
        """Where the expert's gate, up and down matrices lie."""
        block, expert = divmod(key, self.experts)
        return [self.checkpoint.expert(self.blocks[block], expert, part) for part in PARTS]

    def bundle(self, key: int) -> Bundle:
        found = self._bundles.get(key)
        if found is None:
            found = Bundle.of(self.infos(key))
            if found.nbytes > self.size_of(key):  # would be read over the end of its slot
                raise ModelFormatError(
                    f"{self.checkpoint.path}: {self.name(key)}: {found.nbytes:,} bytes, expected at most "
                    f"{self.size_of(key):,}, as the first expert of the block has them"
                )
            self._bundles[key] = found
        return found

    def weights(self, key: int, memory: Bytes) -> list[Weight]:
        """Gate, up and down of the expert whose bundle has been read to this memory."""
        bundle = self.bundle(key)
        return [bundle.weight(info, memory) for info in bundle.infos]

    @cached_property
    def slot_bytes(self) -> list[int]:
        """For each block, memory that any of its experts fits in wherever in a file it begins."""
        found = []
        for number, data in enumerate(self.useful_bytes):
            infos = self.infos(number * self.experts)
            tensors = sum(1 + (info.scale is not None) for info in infos)
            between = max(NEAR, 2 * mmap.PAGESIZE)  # unused bytes of a stretch, or the ends of two stretches
            spare = 2 * mmap.PAGESIZE + (tensors - 1) * between
            found.append(-(-(data + spare) // mmap.PAGESIZE) * mmap.PAGESIZE)
        return found

    @cached_property
    def useful_bytes(self) -> list[int]:
        """For each block, what an expert has of weights."""
        first_ones = (self.infos(number * self.experts) for number in range(len(self.blocks)))
        return [sum(info.total_bytes for info in infos) for infos in first_ones]

    def size_of(self, key: int) -> int:
        return self.slot_bytes[key // self.experts]

    @property
    def total_bytes(self) -> int:
        return self.experts * sum(self.slot_bytes)
