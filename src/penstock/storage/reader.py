"""Reads ranges of files into memory while everything else goes on (native/reader.cpp).

Reads go past the page cache where the file system allows it, several at a time, urgent ones first:

    reader = Reader()
    file = reader.open(Path("model.gguf"))
    job = reader.submit([Piece(file, 0, 8192, 8192, address)])  # address: memory in whole pages
    reader.wait(job)  # the bytes are there, or a ReadError says why not
"""

import ctypes
import errno
import math
import os
import stat
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ctypes import c_int64
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import ReadError
from penstock.machine.disk import open_direct
from penstock.native.library import native
from penstock.native.structs import Outcome, ReaderStats
from penstock.native.structs import Piece as StoredPiece

BLOCK: Final = 4096  # what direct reads are aligned to, in the file and in memory
THREADS: Final = 8
# Bytes that a thread reads at a time: with less a fast disk is slower (benchmarks/streaming.py, the disk-bound case);
# with more, what is urgent waits longer for its turn while prefetches are under way.
CHUNK: Final = 2 << 20
PATIENCE: Final = 0.2  # seconds between two looks whether the user wants to stop

# What `Reader.inject` offers besides any errno.
NO_FAULT, HALF, END, STALL = 0, -1, -2, -3
_END_OF_FILE: Final = -1


class Cover(NamedTuple):
    """Whole blocks of a file; what was asked for begins `skip` bytes behind their start."""

    offset: int
    length: int
    skip: int


def aligned(offset: int, nbytes: int, block: int = BLOCK) -> Cover:
    """The blocks that hold `nbytes` bytes from `offset`.

    >>> aligned(5000, 100)
    Cover(offset=4096, length=4096, skip=904)
    """
    start = offset // block * block
    end = -(-(offset + nbytes) // block) * block
    return Cover(start, end - start, offset - start)


class OpenFile:
    """A file opened for direct reads, or through the page cache where there are none.  Closed when nobody uses it."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self.fd, self.direct = open_direct(path)
        except OSError as error:
            raise ReadError(f"{path}: cannot be read: {error.strerror or error}") from None
        weakref.finalize(self, os.close, self.fd)
        self._opened = os.fstat(self.fd)
        if not stat.S_ISREG(self._opened.st_mode):
            raise ReadError(f"{path}: expected a file, found a folder or a device")
        self.size = self._opened.st_size

    def check(self) -> None:
        """Raises ReadError unless the path still leads to this file, as it was when opened."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise ReadError(f"{self.path}: was open and is gone: {error.strerror or error}") from None
        if not os.path.samestat(now, self._opened):
            raise ReadError(f"{self.path}: another file has taken its place since it was opened")
        if now.st_size < self.size:
            raise ReadError(
                f"{self.path}: truncated since it was opened: expected {self.size:,} bytes, found {now.st_size:,}"
            )
        if now.st_mtime_ns != self._opened.st_mtime_ns:
            raise ReadError(f"{self.path}: written to since it was opened")


class Piece(NamedTuple):
    """`length` bytes of a file from `offset`, and the memory they go to; all three in whole blocks.

    Of them the first `needed` must arrive, and what the rest holds is not said: the last block of a file may reach
    over its end.
    """

    file: OpenFile
    offset: int
    length: int
    needed: int
    address: int


def _stored(piece: Piece) -> StoredPiece:
    file, offset, length, needed, address = piece
    return StoredPiece(file.fd, offset, length, needed, not file.direct, address)


def _expect(good: bool, message: str) -> None:
    """The native reader checks nothing, so whoever calls it says here what must hold."""
    if not good:
        raise ValueError(message)


class Reader:
    """Reads jobs of one or several pieces with threads of its own, started with the first job.

    Methods may be called from any thread.  Memory given to `submit` must stay until the job has finished or been
    cancelled, or `close` has returned.  Every job is to be ended once, by `wait` or by a successful `cancel`.
    """

    def __init__(self, threads: int = THREADS, chunk: int = CHUNK):
        _expect(threads > 0, f"threads: expected at least one, found {threads}")
        _expect(chunk > 0 and chunk % BLOCK == 0, f"chunk: expected whole blocks of {BLOCK}, found {chunk}")
        self._library = native()
        self._reader: int = self._library.ps_reader_create(threads, chunk)
        self._process = os.getpid()
        self._files: dict[Path, OpenFile] = {}
        self._jobs: dict[int, tuple[Piece, ...]] = {}  # also keeps their files open
        # Not in close(): another thread may be inside a call.
        weakref.finalize(self, _destroy, self._reader, self._process).atexit = False

    def open(self, path: Path) -> OpenFile:
        """The file at `path`, opened the first time it is asked for."""
        file = self._files.get(path)
        if file is None:
            file = self._files.setdefault(path, OpenFile(path))
        return file

    def submit(self, pieces: Iterable[Piece], urgent: bool = True) -> int:
        """Asks for pieces to be read, and returns the job's number at once.  Urgent jobs go before all others."""
        kept = tuple(pieces)
        for _, offset, length, needed, address in kept:
            good = offset >= 0 and (offset | length | address) % BLOCK == 0 and 0 <= needed <= length
            _expect(good, f"{needed} of {length} bytes at {offset} to {address:#x}: not in blocks of {BLOCK}")
        stored = (StoredPiece * len(kept))(*map(_stored, kept))
        job: int = 0
        if self._process == os.getpid():  # threads do not survive a fork
            job = self._library.ps_reader_submit(self._reader, stored, len(kept), urgent)
        if job == 0:
            raise ReadError(
                "nothing can be read: the reader has been closed, or the system gave it no threads"
            )
        self._jobs[job] = kept
        return job

    def promote(self, job: int) -> bool:
        """What is left of a prefetch becomes urgent.  False: nothing was left, or it was urgent already."""
        return bool(self._library.ps_reader_promote(self._reader, job))

    def cancel(self, job: int) -> bool:
        """Takes a job back of which nothing has been read yet.  False: too late, it goes on to its end."""
        cancelled = bool(self._library.ps_reader_cancel(self._reader, job))
        if cancelled:
            self._jobs.pop(job, None)
        return cancelled

    def drop(self, job: int) -> None:
        """Ends a job nobody wants, if it has not ended yet: its memory is free when this returns."""
        if not self.cancel(job):
            with suppress(ReadError):  # whatever became of it
                self.wait(job)

    def poll(self, job: int) -> bool:
        """Whether the job has finished, well or not."""
        return bool(self._library.ps_reader_poll(self._reader, job))

    def wait_any(self, jobs: Sequence[int], timeout: float | None = None) -> int | None:
        """The first in `jobs` that has finished, as soon as there is one; None after `timeout` seconds.

        How it ended is for `wait` to say.  A job that was cancelled or waited for counts as finished.
        """
        _expect(len(jobs) > 0, "no job to wait for")
        end = math.inf if timeout is None else time.monotonic() + timeout
        ids = (c_int64 * len(jobs))(*jobs)
        while True:
            left = max(0.0, end - time.monotonic())
            milliseconds = math.ceil(min(left, PATIENCE) * 1000)
            index: int = self._library.ps_reader_wait_any(self._reader, ids, len(jobs), milliseconds)
            if index >= 0:
                return jobs[index]
            if left <= PATIENCE:
                return None

    def wait(self, job: int) -> None:
        """Returns when the job's bytes are in memory; ReadError if they cannot be had.  The job is over then."""
        self.wait_any((job,))
        pieces, outcome = self._jobs.pop(job, None), Outcome()
        known = self._library.ps_reader_forget(self._reader, job, ctypes.byref(outcome))
        if pieces is None or not known:
            raise ReadError(f"job {job}: there is none: it was cancelled or has been waited for")
        if outcome.error:
            raise ReadError(_failure(pieces[outcome.piece], outcome))

    def wait_all(self, jobs: Iterable[int]) -> None:
        """Waits for every one of them, and raises the first failure only when all are over."""
        failures = []
        for job in jobs:
            try:
                self.wait(job)
            except ReadError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def stats(self) -> dict[str, int]:
        """Since the beginning: bytes, reads, retries, busy_ns (all reads' times added up), active_ns (with at least
        one read in flight; bytes / active_ns is the bandwidth), longest_ns; and reads in_flight now."""
        found = ReaderStats()
        self._library.ps_reader_statistics(self._reader, ctypes.byref(found))
        return {name: getattr(found, name) for name, *_ in ReaderStats._fields_}

    def inject(self, kind: int, file: OpenFile, count: int = 1, from_offset: int = 0) -> None:
        """For tests: the next `count` reads of `file` that reach beyond `from_offset` fail with errno `kind`, get
        HALF of what they ask for, find the END of the file, or STALL until the next call, which replaces this."""
        self._library.ps_reader_inject(self._reader, kind, count, file.fd, from_offset)

    def close(self) -> None:
        """Drops jobs that wait, whose `wait` then fails, and returns when nothing is being read any more."""
        if self._process == os.getpid():
            self._library.ps_reader_stop(self._reader)
        self._files.clear()


def _destroy(reader: int, process: int) -> None:
    if process == os.getpid():  # a forked child has the reader's memory but not its threads
        native().ps_reader_destroy(reader)


def _failure(piece: Piece, outcome: Outcome) -> str:
    file = piece.file
    if outcome.error == errno.ECANCELED:
        return f"{file.path}: bytes from {outcome.offset:,}: the reader was closed before they were read"
    expected = f"{file.path}: expected {piece.needed:,} bytes from {piece.offset:,}"
    if outcome.error == _END_OF_FILE:
        return (
            f"{expected}, found the end of the file at {outcome.offset:,}.\n"
            f"It had {file.size:,} bytes when it was opened: has it been changed or replaced since?"
        )
    return f"{expected}, found at {outcome.offset:,}: {os.strerror(outcome.error)}"
