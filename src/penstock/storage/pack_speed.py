"""Whether this disk delivers experts faster when each one lies in one piece.

Random experts are read as the engine reads them, and just as many bytes in one piece each, by turns.  The model's own
file serves for both, so that nothing has to be written to know whether a pack is worth writing.
"""

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from penstock.machine.pages import reserve
from penstock.storage.bundle import Bundle, Bytes, Stretch
from penstock.storage.reader import BLOCK, Reader, aligned
from penstock.storage.source import ExpertSource

SECONDS: Final = 0.05  # of reading in one way before it is the other's turn
ROUNDS: Final = 20


class Speeds(NamedTuple):
    """Bytes of experts per second: as they lie now, and in one piece each; and what the latter gains."""

    apart: float
    together: float
    gain: float  # 0.1: a tenth more


def reads_per_expert(source: ExpertSource) -> float:
    """Stretches of the files that an expert is in, on average over those that a pack would hold."""
    keys = _keys(source)
    return sum(len(source.bundle(key).stretches) for key in keys) / len(keys)


def measure(source: ExpertSource, seconds: float = SECONDS, rounds: int = ROUNDS) -> Speeds:
    """Reads both ways by turns, with as many experts on their way as a token asks a layer for."""
    in_flight = source.checkpoint.config.experts_used
    buffers = [np.frombuffer(reserve(max(source.slot_bytes), large=True), np.uint8) for _ in range(in_flight)]
    apart: list[float] = []
    together: list[float] = []
    ways = [(_as_they_lie(source), apart), (_in_one_piece(source), together)]
    with closing(Reader()) as reader:
        for requests, _ in ways:
            _speed(reader, buffers, requests, 0.0)  # opens files, starts threads, brings memory
        for _ in range(rounds):
            for requests, speeds in ways:
                speeds.append(_speed(reader, buffers, requests, seconds))
            ways.reverse()  # so that neither is always first
    # A disk is faster now and slower then: only rounds that follow each other can be compared.
    gain = median(new / old for old, new in zip(apart, together, strict=True)) - 1
    return Speeds(median(apart), median(together), gain)


class _Request(NamedTuple):
    bundle: Bundle
    nbytes: int  # that are of use


def _as_they_lie(source: ExpertSource) -> Iterator[_Request]:
    for key in _random_keys(source):
        bundle = source.bundle(key)
        yield _Request(bundle, sum(info.total_bytes for info in bundle.infos))


def _in_one_piece(source: ExpertSource) -> Iterator[_Request]:
    """As many bytes, from random places of the largest file: whatever they are, they take as long."""
    largest = max(source.checkpoint.files, key=lambda file: file.size)
    for _, nbytes in _as_they_lie(source):
        offset = random.randrange(0, max(1, largest.size - nbytes), BLOCK)
        needed = min(nbytes, largest.size - offset)
        length = aligned(offset, needed).length
        yield _Request(Bundle((), (Stretch(largest.path, offset, length, needed, 0),), {}, length), needed)


def _random_keys(source: ExpertSource) -> Iterator[int]:
    """Each one before any comes again, because disks remember what they have just read."""
    keys = _keys(source)
    while True:
        random.shuffle(keys)
        yield from keys


def _keys(source: ExpertSource) -> list[int]:
    return list(range(source.checkpoint.config.layer_count * source.experts))


def _speed(reader: Reader, buffers: Sequence[Bytes], requests: Iterator[_Request], seconds: float) -> float:
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
