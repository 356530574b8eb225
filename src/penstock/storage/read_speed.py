"""How fast a model's experts come from its disk: one alone, and many in a row, read as the engine reads them."""

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import cycle
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from penstock.backend.base import Backend
from penstock.machine.disk import find_disk
from penstock.machine.measured_once import MeasuredOnce
from penstock.machine.pages import reserve
from penstock.storage.bundle import Bundle, Bytes
from penstock.storage.reader import Reader
from penstock.storage.source import ExpertSource
from penstock.storage.store import ready_expert

ONE_BY_ONE: Final = 12  # experts
ROUNDS: Final = 11  # of many in a row
# The third best of them counts: a disk is slower while others use it, and hardly ever at its best
GOOD: Final = 3
FEW_ROUNDS: Final = 3  # that tell whether it is still so
SETTLING: Final = 3  # times that memory is read to before: a virtual machine's host is slow with what is new
AGREES: Final = 1.4  # times as fast or as slow, beyond which it is not
LAYER: Final = 1e-9  # seconds that a layer works for each byte of an expert
PAUSE: Final = 0.05  # seconds between two of them, so that not all fall in the same moment
SECONDS: Final = 0.08  # of a round
IN_FLIGHT: Final = 12
SHORTEST: Final = 1e-15  # seconds of a byte
MOST_BYTES: Final = 128 << 20  # of memory for them


class ReadSpeed(NamedTuple):
    """A burst of reads takes `latency` seconds and then `1 / bytes_per_second` for each byte that is of use; `cold`
    seconds more for one that nobody has read for a while: hosts of virtual machines remember what was.

    >>> ReadSpeed(2e9, 0.001).seconds(4_000_000)
    0.003
    """

    bytes_per_second: float
    latency: float
    cold: float = 0.0

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bytes_per_second if nbytes else 0.0


def read_speed(source: ExpertSource, backend: Backend, notes: MeasuredOnce) -> ReadSpeed:
    """As noted for this disk and experts of this size, or measured now, in a second."""
    disk = find_disk(source.checkpoint.files[0].path)
    size, pieces = source.slot_bytes[0], len(source.bundle(0).stretches)
    # Numbers of devices are given anew at every start, so the file system and the size have to agree too.
    item = f"disk {disk.device} {disk.filesystem} {disk.size}, {pieces} pieces of {size}"
    by_byte, latency, cold = notes.numbers(
        item,
        3,
        lambda: measure_reads(source, backend),
        holds=lambda noted: still_reads(source, noted[0] + noted[2]),
    )
    return ReadSpeed(1 / max(by_byte, SHORTEST), latency, cold)


def still_reads(source: ExpertSource, by_byte: float) -> bool:
    """Whether a byte takes about as long as it did.  Disks of virtual machines change from hour to hour, and a file
    that its host has read once comes faster."""
    buffers, requests = _buffers(source), experts_at_random(source)
    with closing(Reader()) as reader:
        _settle(reader, buffers, requests)
        now = 1 / max(stream(reader, buffers, requests, SECONDS) for _ in range(FEW_ROUNDS))
    return by_byte / AGREES < now < by_byte * AGREES


def slower_at_first(source: ExpertSource, memory: Bytes) -> float:
    """Seconds longer that a byte takes to be read to memory that has been read to only once, than later.  The host of
    a virtual machine is slow with memory that it has just given, not only when it gives it."""
    size, most = max(source.slot_bytes), len(source.blocks) * source.experts
    buffers = [memory[at : at + size] for at in range(0, len(memory) - size + 1, size)][:most]
    if not buffers:
        return 0.0
    requests = experts_at_random(source)
    with closing(Reader()) as reader:
        _, second, third = (1 / stream(reader, buffers, requests, 0.0) for _ in range(3))
    return max(0.0, second - third)


def _buffers(source: ExpertSource) -> list[Bytes]:
    size = max(source.slot_bytes)
    count = max(1, min(IN_FLIGHT, MOST_BYTES // size))
    return [np.frombuffer(reserve(size, large=True), np.uint8) for _ in range(count)]


def _settle(reader: Reader, buffers: Sequence[Bytes], requests: "Iterator[Request]") -> None:
    """Opens files, starts threads, and reads to the memory until it is as quick as it gets."""
    for _ in range(SETTLING):
        stream(reader, buffers, requests, 0.0)


def measure_reads(source: ExpertSource, backend: Backend) -> list[float]:
    """Seconds by the byte of what has been read before; those of a burst before its first byte; and by the byte those
    more that it takes to be read for the first time."""
    buffers, requests, seen = _buffers(source), experts_at_random(source), list[Request]()
    with closing(Reader()) as reader:
        _settle(reader, buffers, requests)
        first = _good(reader, buffers, _noting(requests, seen))
        before = cycle(seen)
        again = _good(reader, buffers, before)
        alone = [_one(reader, backend, buffers[0], next(before)) for _ in range(ONE_BY_ONE)]
    seconds, own = (median(numbers) for numbers in zip(*alone, strict=True))
    latency = max(0.0, seconds - own - source.useful_bytes[0] / again)
    return [1 / again, latency, max(0.0, 1 / first - 1 / again)]


def _good(reader: Reader, buffers: Sequence[Bytes], requests: "Iterator[Request]") -> float:
    """Bytes per second."""
    speeds = []
    for _ in range(ROUNDS):
        speeds.append(stream(reader, buffers, requests, SECONDS))
        time.sleep(PAUSE)
    return sorted(speeds)[-GOOD]


def _noting(requests: "Iterator[Request]", seen: "list[Request]") -> "Iterator[Request]":
    for request in requests:
        seen.append(request)
        yield request


def _one(reader: Reader, backend: Backend, buffer: Bytes, request: "Request") -> tuple[float, float]:
    """Seconds until a layer has an expert that it waits for, and those of them that this thread worked.  Before it
    there is a pause as long as a layer's work on such experts: a disk that had nothing to do begins late."""
    rested = time.perf_counter() + request.nbytes * LAYER
    while time.perf_counter() < rested:
        pass
    begin, worked = time.perf_counter(), time.thread_time()
    reader.wait(reader.submit(list(request.bundle.pieces(reader, buffer.ctypes.data))))
    ready_expert(backend, [request.bundle.weight(info, buffer) for info in request.bundle.infos])
    return time.perf_counter() - begin, time.thread_time() - worked


class Request(NamedTuple):
    bundle: Bundle
    nbytes: int  # that are of use


def experts_at_random(source: ExpertSource) -> Iterator[Request]:
    """Each one before any comes again, because disks remember what they have just read."""
    keys = list(range(source.checkpoint.config.layer_count * source.experts))
    while True:
        random.shuffle(keys)
        for key in keys:
            bundle = source.bundle(key)
            yield Request(bundle, sum(info.total_bytes for info in bundle.infos))


def stream(reader: Reader, buffers: Sequence[Bytes], requests: Iterator[Request], seconds: float) -> float:
    """Bytes per second, with one request on its way to each of the buffers at any time."""
    begin, nbytes = time.perf_counter(), 0
    jobs: deque[int] = deque()
    for number, (bundle, useful) in enumerate(requests):
        if number >= len(buffers):
            reader.wait(jobs.popleft())
            if time.perf_counter() >= begin + seconds:
                break
        address = buffers[number % len(buffers)].ctypes.data
        jobs.append(reader.submit(bundle.pieces(reader, address)))
        nbytes += useful
    reader.wait_all(jobs)
    return nbytes / (time.perf_counter() - begin)
