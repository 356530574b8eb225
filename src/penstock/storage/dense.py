"""The weights that every token needs: all but the routed experts.

They stay where the file is mapped, or are read into memory once.  Where not even they fit, some blocks stay and the
others take turns in two buffers: while one block computes, the next that has no place of its own is read.  The output
matrix, if it does not fit either, comes in slices.
"""

import mmap
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

import numpy as np

from penstock.backend.base import Backend, DeviceWeight
from penstock.errors import ReadError
from penstock.machine.pages import reserve
from penstock.storage.bundle import Bundle, Bytes
from penstock.storage.reader import Reader
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.tensor import TensorInfo, Weight

HEAD: Final = "output.weight"
EMBEDDING: Final = "token_embd.weight"
LARGEST_SLICE: Final = 16 << 20  # bytes of the output matrix at a time
SLICE_ROWS: Final = 128  # in which its slices are counted: scales may stand for that many
BUFFERS: Final = 2


class DenseWeights:
    """Straight from the mapped file; the operating system decides what stays in memory."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend):
        self.checkpoint, self.backend = checkpoint, backend
        self._head: DeviceWeight | None = None  # once it has been asked for

    def weight(self, name: str) -> DeviceWeight:
        """A weight for the backend's ops."""
        info = self.checkpoint.index[name]
        weight = self.backend.weight(info)
        mapped = Weight(info)
        weight.place(mapped.raw, mapped.scale)
        if name == HEAD:
            self._head = weight
        return weight

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Brings to memory what is to stay there.  Called once, when every weight has been asked for."""

    def stays(self, block: str) -> bool:
        """Whether the block's weights can be used at any time, not only between `enter` and `leave`."""
        del block  # all of them are always in the file
        return True

    def enter(self, block: str) -> None:
        """The block's weights are about to be used."""

    def leave(self, block: str) -> None:
        """They are not needed before the next token."""

    def head(self) -> Iterator[DeviceWeight]:
        """The output matrix, in pieces of its rows.  Each is good until the next is asked for."""
        assert self._head is not None
        yield self._head

    def whole_head(self) -> DeviceWeight | None:
        """The output matrix, where it is always at hand."""
        return self._head

    def stats(self) -> dict[str, float]:
        return {}


def block_of(name: str) -> str:
    """What a tensor comes and goes with: its block, or "" for the few that stand outside of all."""
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first in ("blk", "mtp") else ""


class LoadedDense(DenseWeights):
    """Read into memory: the blocks in `streamed` and the output matrix, if `slice_head`, only for as long as they are
    used, all others once."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        backend: Backend,
        reader: Reader,
        streamed: Collection[str] = (),
        slice_head: bool = False,
    ):
        super().__init__(checkpoint, backend)
        self.reader, self.slice_head = reader, slice_head
        self.order = [block for block in checkpoint.blocks if block in streamed]
        self.stall_seconds, self.bytes_read = 0.0, 0
        self._weights: dict[str, list[DeviceWeight]] = {}
        self._bundles: dict[str, Bundle] = {}
        self._buffers: list[Bytes] = []
        self._turn: dict[str, tuple[int, int]] = {}  # streamed block → buffer and job of its latest read
        for file in checkpoint.files:
            file.expect_little()

    def weight(self, name: str) -> DeviceWeight:
        if name == EMBEDDING:  # a token needs one row of it, so it stays in the file
            return super().weight(name)
        weight = self.backend.weight(self.checkpoint.index[name])
        if name == HEAD:
            self._head = weight
        if not (name == HEAD and self.slice_head):
            self._weights.setdefault(block_of(name), []).append(weight)
        return weight

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        self._bundles = {
            block: Bundle.of([weight.info for weight in weights]) for block, weights in self._weights.items()
        }
        held = [block for block in self._bundles if block not in self.order]
        memory = np.frombuffer(reserve(max(mmap.PAGESIZE, self.held_bytes), large=True), np.uint8)
        jobs, at = [], 0
        for block in held:
            bundle = self._bundles[block]
            place = memory[at : at + bundle.nbytes]
            jobs.append((block, place, self._read(bundle, place, urgent=True)))
            at += bundle.nbytes
        done = 0
        for block, place, job in jobs:
            self.reader.wait(job)
            self._place(block, place)
            done += self._bundles[block].nbytes
            if progress is not None:
                progress(done, self.held_bytes)
        if self.order:
            size = max(self._bundles[block].nbytes for block in self.order)
            self._buffers = [np.frombuffer(reserve(size, large=True), np.uint8) for _ in range(BUFFERS)]
        for number, block in enumerate(self.order[:BUFFERS]):
            self._begin(block, number)
        if self.slice_head:
            self._slices = slices(self.checkpoint.index[HEAD])
            self._slice_weights = [self.backend.weight(bundle.infos[0]) for bundle in self._slices]
            size = max(bundle.nbytes for bundle in self._slices)
            self._slice_buffers = [np.frombuffer(reserve(size, large=True), np.uint8) for _ in range(BUFFERS)]

    @property
    def held_bytes(self) -> int:
        return sum(bundle.nbytes for block, bundle in self._bundles.items() if block not in self.order)

    # ── blocks that take turns ────────────────────────────────────────────────────────────────────────────

    def stays(self, block: str) -> bool:
        return block not in self.order

    def enter(self, block: str) -> None:
        if block not in self.order:
            return
        if block not in self._turn:  # not the one that was expected, as after an error
            self._restart(block)
        number, job = self._turn[block]
        if job:
            self.reader.promote(job)
            begin = time.perf_counter()
            try:
                self._wait(block, number, job)
            except ReadError as error:
                del self._turn[block]
                raise ReadError(f"weights of {block}: {error}") from None
            finally:
                self.stall_seconds += time.perf_counter() - begin
            self._turn[block] = (number, 0)
            self._place(block, self._buffers[number])

    def _wait(self, block: str, buffer: int, job: int) -> None:
        """What was read ahead may have failed while nobody waited for it: now it is asked for once more."""
        try:
            self.reader.wait(job)
        except ReadError:
            self.reader.wait(self._read(self._bundles[block], self._buffers[buffer], urgent=True))

    def leave(self, block: str) -> None:
        if block not in self._turn:
            return
        number, _ = self._turn.pop(block)
        at = self.order.index(block)
        following = self.order[(at + len(self._turn) + 1) % len(self.order)]
        if following not in self._turn:
            self._begin(following, number)

    def _begin(self, block: str, buffer: int) -> None:
        bundle = self._bundles[block]
        self._turn[block] = (buffer, self._read(bundle, self._buffers[buffer], urgent=False))

    def _restart(self, block: str) -> None:
        """From this block on, whatever the buffers hold now."""
        for _, job in self._turn.values():
            if job:
                self.reader.drop(job)
        self._turn.clear()
        at = self.order.index(block)
        for number in range(min(BUFFERS, len(self.order))):
            self._begin(self.order[(at + number) % len(self.order)], number)

    # ── the output matrix in slices ───────────────────────────────────────────────────────────────────────

    def whole_head(self) -> DeviceWeight | None:
        return None if self.slice_head else super().whole_head()

    def head(self) -> Iterator[DeviceWeight]:
        if not self.slice_head:
            yield from super().head()
            return
        jobs = [self._read_slice(number) for number in range(min(BUFFERS, len(self._slices)))]
        try:
            for number, (bundle, weight) in enumerate(zip(self._slices, self._slice_weights, strict=True)):
                begin = time.perf_counter()
                self.reader.wait(jobs.pop(0))
                self.stall_seconds += time.perf_counter() - begin
                weight.place(*bundle.views(weight.info, self._slice_buffers[number % BUFFERS]))
                yield weight
                if number + BUFFERS < len(self._slices):
                    jobs.append(self._read_slice(number + BUFFERS))
        finally:  # after an error nothing is read to a buffer that others will use
            for job in jobs:
                self.reader.drop(job)

    def _read_slice(self, number: int) -> int:
        return self._read(self._slices[number], self._slice_buffers[number % BUFFERS], urgent=True)

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, bundle: Bundle, memory: Bytes, urgent: bool) -> int:
        self.bytes_read += sum(stretch.length for stretch in bundle.stretches)
        return self.reader.submit(bundle.pieces(self.reader, memory.ctypes.data), urgent=urgent)

    def _place(self, block: str, memory: Bytes) -> None:
        bundle = self._bundles[block]
        for weight in self._weights[block]:
            weight.place(*bundle.views(weight.info, memory))

    def stats(self) -> dict[str, float]:
        return {"dense_stall_seconds": self.stall_seconds, "dense_bytes_read": self.bytes_read}


def slices(info: TensorInfo) -> list[Bundle]:
    """The output matrix, in pieces of some whole blocks of rows."""
    block = info.kind.row_bytes(info.shape[1]) * SLICE_ROWS
    rows = max(1, min(LARGEST_SLICE, info.nbytes // 8) // block) * SLICE_ROWS
    total = info.shape[0]
    return [Bundle.of([info.rows(first, min(rows, total - first))]) for first in range(0, total, rows)]
