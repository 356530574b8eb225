"""Weights in a device's own memory: all of them, read once and copied there.

The file is read in its own order, a staging buffer at a time, several ahead; each buffer is copied and laid out by
the device while the next ones arrive.  Host memory is the staging buffers alone.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from penstock.backend.base import Array, Bytes, DeviceWeight, ExpertStack, SlicedWeight
from penstock.backend.device import DeviceBackend
from penstock.storage.bundle import Bundle
from penstock.storage.dense import HEAD, DenseWeights
from penstock.storage.reader import Reader
from penstock.storage.source import PARTS
from penstock.storage.store import Lease, ResidentLease, TableStore
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.tensor import TensorInfo

BUFFERS: Final = 6
BUFFER: Final = 64 << 20  # bytes of weights in one, about
SLICE: Final = 32 << 20  # bytes of a weight that is placed at a time
SLICE_ROWS: Final = 128  # in which slices are counted: scales may stand for that many


class Part(NamedTuple):
    """Some rows of a weight, and who takes their bytes."""

    info: TensorInfo
    take: Callable[[TensorInfo, Bytes, Bytes | None], None]


class DeviceExperts(TableStore):
    """All routed experts, one stack for each layer."""

    def __init__(self, checkpoint: Checkpoint, backend: DeviceBackend):
        self.checkpoint = checkpoint
        used = checkpoint.config.experts_used
        self._stacks: dict[str, ExpertStack] = {}
        self._infos: dict[str, list[list[TensorInfo]]] = {}
        for block in checkpoint.blocks:
            self._infos[block] = expert_infos(checkpoint, block)
            self._stacks[block] = backend.expert_stack(self._infos[block], used)
        self._leases = {block: ResidentLease(stack) for block, stack in self._stacks.items()}

    def acquire(self, block: str, ids: Array, following: Callable[[], None] | None = None) -> Lease:
        del ids, following  # all are there
        return self._leases[block]

    def parts(self) -> Iterator[Part]:
        """Experts that follow each other in the file come together."""
        for block, experts in self._infos.items():
            for part in range(len(PARTS)):
                infos = [expert[part] for expert in experts]
                for first, count in _runs(infos):
                    yield Part(_together(infos[first : first + count]), self._taker(block, part, first))

    def _taker(self, block: str, part: int, first: int) -> Callable[[TensorInfo, Bytes, Bytes | None], None]:
        stack = self._stacks[block]
        return lambda info, raw, scale: stack.place(part, first, info, raw, scale)


def expert_infos(checkpoint: Checkpoint, block: str) -> list[list[TensorInfo]]:
    """Gate, up and down of every expert of a block."""
    return [
        [checkpoint.expert(block, number, part) for part in PARTS]
        for number in range(checkpoint.config.experts)
    ]


def _runs(infos: Sequence[TensorInfo]) -> Iterator[tuple[int, int]]:
    """(first, count) of experts whose bytes follow each other, at most a slice of them"""
    first = 0
    for at in range(1, len(infos) + 1):
        before, size = infos[at - 1], (at - first) * infos[first].nbytes
        joined = (
            at < len(infos)
            and before.scale is None
            and infos[at].scale is None
            and infos[at].file is before.file
            and infos[at].offset == before.end
            and infos[at].kind is before.kind
            and size < SLICE
        )
        if not joined:
            yield first, at - first
            first = at


def _together(infos: Sequence[TensorInfo]) -> TensorInfo:
    """Neighbours as one matrix."""
    rows, columns = infos[0].shape
    return replace(infos[0], shape=(len(infos) * rows, columns), nbytes=sum(info.nbytes for info in infos))


class DeviceDense(DenseWeights):
    """All weights outside of the routed experts; loading brings those too, where all of them stay."""

    def __init__(
        self, checkpoint: Checkpoint, backend: DeviceBackend, reader: Reader, experts: DeviceExperts | None
    ):
        super().__init__(checkpoint, backend)
        self._device, self._reader, self._experts = backend, reader, experts
        self._weights: dict[str, DeviceWeight] = {}
        for file in checkpoint.files:
            file.expect_little()

    def weight(self, name: str) -> DeviceWeight:
        if name not in self._weights:
            self._weights[name] = self.backend.weight(self.checkpoint.index[name])
        if name == HEAD:
            self._head = self._weights[name]
        return self._weights[name]

    def _parts(self) -> Iterator[Part]:
        for weight in self._weights.values():
            yield from _slices(weight)
        if self._experts is not None:
            yield from self._experts.parts()

    def load(self, progress: Callable[[int, int], None] | None = None) -> None:
        parts = sorted(self._parts(), key=lambda part: (str(part.info.file.path), part.info.offset))
        batches = list(_batches(parts))
        bundles = [Bundle.of([part.info for part in batch]) for batch in batches]
        total, done = sum(part.info.total_bytes for part in parts), 0
        size = max((bundle.nbytes for bundle in bundles), default=0)
        count = min(BUFFERS, len(bundles))
        buffers = [self._device.staging(size) for _ in range(count)]
        waits: list[Callable[[], None] | None] = [None] * count
        jobs: deque[int] = deque()

        def read(number: int) -> None:
            wait = waits[number % count]
            if wait is not None:
                wait()  # its bytes of the time before are on the device
            address = buffers[number % count].ctypes.data
            jobs.append(self._reader.submit(bundles[number].pieces(self._reader, address)))

        for number in range(count):
            read(number)
        for number, (batch, bundle) in enumerate(zip(batches, bundles, strict=True)):
            self._reader.wait(jobs.popleft())
            memory = buffers[number % count]
            for part in batch:
                part.take(part.info, *bundle.views(part.info, memory))
                done += part.info.total_bytes
            waits[number % count] = self._device.fence()
            if number + count < len(bundles):
                read(number + count)
            if progress is not None:
                progress(done, total)
        for wait in waits:
            if wait is not None:
                wait()


def _slices(weight: DeviceWeight) -> Iterator[Part]:
    info = weight.info
    if not isinstance(weight, SlicedWeight) or not weight.slices or info.total_bytes <= SLICE:
        yield Part(info, lambda _, raw, scale: weight.place(raw, scale))
        return
    block = info.kind.row_bytes(info.shape[1]) * SLICE_ROWS
    rows = max(1, SLICE // block) * SLICE_ROWS
    for first in range(0, info.shape[0], rows):
        part = info.rows(first, min(rows, info.shape[0] - first))
        yield Part(part, partial(_place_rows, weight, first))


def _place_rows(weight: SlicedWeight, first: int, info: TensorInfo, raw: Bytes, scale: Bytes | None) -> None:
    weight.place_rows(info, first, raw, scale)


def _batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts that share a staging buffer."""
    batch: list[Part] = []
    size = 0
    for part in parts:
        if batch and size + part.info.total_bytes > BUFFER:
            yield batch
            batch, size = [], 0
        batch.append(part)
        size += part.info.total_bytes
    if batch:
        yield batch
