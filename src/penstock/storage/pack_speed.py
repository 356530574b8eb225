"""Whether this disk delivers experts faster when each one lies in one piece.

Random experts are read as the engine reads them, and just as many bytes in one piece each, by turns.  The model's own
file serves for both, so that nothing has to be written to know whether a pack is worth writing.
"""

import random
from collections.abc import Iterator
from contextlib import closing
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from penstock.machine.pages import reserve
from penstock.storage.bundle import Bundle, Stretch
from penstock.storage.read_speed import Request, experts_at_random, stream
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
    ways = [(experts_at_random(source), apart), (_in_one_piece(source), together)]
    with closing(Reader()) as reader:
        for requests, _ in ways:
            stream(reader, buffers, requests, 0.0)  # opens files, starts threads, brings memory
        for _ in range(rounds):
            for requests, speeds in ways:
                speeds.append(stream(reader, buffers, requests, seconds))
            ways.reverse()  # so that neither is always first
    # A disk is faster now and slower then: only rounds that follow each other can be compared.
    gain = median(new / old for old, new in zip(apart, together, strict=True)) - 1
    return Speeds(median(apart), median(together), gain)


def _in_one_piece(source: ExpertSource) -> Iterator[Request]:
    """As many bytes, from random places of the largest file: whatever they are, they take as long."""
    largest = max(source.checkpoint.files, key=lambda file: file.size)
    for _, nbytes in experts_at_random(source):
        offset = random.randrange(0, max(1, largest.size - nbytes), BLOCK)
        needed = min(nbytes, largest.size - offset)
        length = aligned(offset, needed).length
        yield Request(Bundle((), (Stretch(largest.path, offset, length, needed, 0),), {}, length), needed)


def _keys(source: ExpertSource) -> list[int]:
    return list(range(source.checkpoint.config.layer_count * source.experts))
