"""A disk that is slower than the one that is here, so that what has to be read matters for a small model too."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from penstock.storage import storage
from penstock.storage.reader import Piece, Reader

BYTES_PER_SECOND: Final = 200e6


class SlowReader(Reader):
    """Jobs are over one after another at this pace, in the order in which they were asked for; the bytes may be there
    before."""

    def __init__(self) -> None:
        super().__init__()
        self._due: dict[int, float] = {}  # when each job is over
        self._free = 0.0  # when all are

    def submit(self, pieces: Iterable[Piece], urgent: bool = True) -> int:
        kept = tuple(pieces)
        job = super().submit(kept, urgent)
        seconds = sum(piece.length for piece in kept) / BYTES_PER_SECOND
        self._due[job] = self._free = max(time.perf_counter(), self._free) + seconds
        return job

    def poll(self, job: int) -> bool:
        return time.perf_counter() >= self._due.get(job, 0.0) and super().poll(job)

    def wait_any(self, jobs: Sequence[int], timeout: float | None = None) -> int | None:
        first = min(jobs, key=lambda job: self._due.get(job, 0.0))
        time.sleep(max(0.0, self._due.get(first, 0.0) - time.perf_counter()))
        return super().wait_any([first], timeout)

    def wait(self, job: int) -> None:
        super().wait(job)
        self._due.pop(job, None)


@contextmanager
def slow_disk() -> Iterator[None]:
    """Engines that load meanwhile have one."""
    with patch.object(storage, "Reader", SlowReader):
        yield
