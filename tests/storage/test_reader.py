"""Reading ranges of files: the right bytes, in the right order, and every fault told."""

import ctypes
import errno
import mmap
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import ReadError
from penstock.storage.reader import BLOCK, END, HALF, NO_FAULT, STALL, OpenFile, Piece, Reader, aligned

SIZE = 300_007  # not whole blocks
CONTENT = np.random.default_rng(0).integers(0, 256, SIZE, dtype=np.uint8)
UNTOUCHED = 0xA5
PATIENCE_S = 300  # for what takes milliseconds on an idle machine


def memory(nbytes: int) -> NDArray[np.uint8]:
    """Page-aligned bytes [nbytes]."""
    made = np.frombuffer(mmap.mmap(-1, max(1, nbytes)), dtype=np.uint8)[:nbytes]
    made[:] = UNTOUCHED
    return made


SCRATCH = memory(8 * BLOCK)  # for bytes that nobody looks at


def blocks(file: OpenFile, first: int, count: int, to: NDArray[np.uint8] = SCRATCH) -> Piece:
    """Whole blocks of the file, as far as it goes."""
    offset, length = first * BLOCK, count * BLOCK
    assert length <= to.size
    return Piece(file, offset, length, min(length, SIZE - offset), to.ctypes.data)


def holds(found: NDArray[np.uint8], offset: int) -> bool:
    return bool((found == CONTENT[offset : offset + found.size]).all())


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "model.bin"
    made.write_bytes(CONTENT.tobytes())
    return made


@pytest.fixture
def reader() -> Iterator[Reader]:
    """One thread, so that reads have an order; small chunks, so that pieces have several."""
    made = Reader(threads=1, chunk=2 * BLOCK)
    yield made
    made.close()


@pytest.fixture
def file(reader: Reader, path: Path) -> OpenFile:
    return reader.open(path)


def refuse_direct(patch: pytest.MonkeyPatch) -> None:
    """From now on files are opened as on a file system without direct reads."""
    original = os.open

    def refuse(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return original(path, flags, mode)

    patch.setattr(os, "open", refuse)


@pytest.fixture(params=["direct", "cached"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cached":
        refuse_direct(monkeypatch)
    return str(request.param)


def still_reads(reader: Reader, file: OpenFile) -> bool:
    reader.inject(NO_FAULT, file)
    to = memory(2 * BLOCK)
    reader.wait(reader.submit([blocks(file, 0, 2, to)]))
    return holds(to, 0)


class Held:
    """The reader's only thread, in the middle of a read."""

    def __init__(self, reader: Reader, file: OpenFile, count: int = 1, urgent: bool = True):
        self.reader, self.to = reader, memory(count * BLOCK)
        reader.inject(STALL, file)
        self.job = reader.submit([blocks(file, 0, count, self.to)], urgent)
        until(lambda: reader.stats()["in_flight"] == 1)


# Bytes


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 24), st.sampled_from([512, 4096, 65536]))
def test_aligned_is_the_smallest_cover(offset: int, nbytes: int, block: int) -> None:
    start, length, skip = aligned(offset, nbytes, block)
    assert start % block == 0
    assert length % block == 0
    assert start + skip == offset
    assert 0 <= skip < block
    assert skip + nbytes <= length < skip + nbytes + block


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_many_pieces_land_exactly(path: Path, threads: int, either_way: str) -> None:
    reader, numbers = Reader(threads, chunk=2 * BLOCK), random.Random(0)
    file = reader.open(path)
    assert file.direct == (either_way == "direct")
    jobs, expected = [], []
    for _ in range(40):
        pieces = []
        for _ in range(numbers.randrange(5)):
            offset, length, _ = aligned(start := numbers.randrange(SIZE), numbers.randrange(SIZE - start))
            to = memory(length + BLOCK)
            pieces.append(Piece(file, offset, length, min(length, SIZE - offset), to.ctypes.data))
            expected.append((to, pieces[-1]))
        jobs.append(reader.submit(pieces, urgent=numbers.random() < 0.5))
    reader.wait_all(jobs)
    reader.close()
    for to, piece in expected:
        assert holds(to[: piece.needed], piece.offset)
        assert (to[piece.length :] == UNTOUCHED).all()


ranges = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)), max_size=6)


@given(
    st.lists(st.tuples(ranges, st.booleans()), max_size=5),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(0, 9),
    st.booleans(),
)
def test_any_ranges_arrive(
    tmp_path_factory: pytest.TempPathFactory,
    jobs: list[tuple[list[tuple[int, int]], bool]],
    threads: int,
    chunk: int,
    halves: int,
    direct: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / "ranges.bin"
    if not path.exists():
        path.write_bytes(CONTENT.tobytes())
    reader = Reader(threads, chunk * BLOCK)
    with pytest.MonkeyPatch.context() as patch:
        if not direct:
            refuse_direct(patch)
        file = reader.open(path)
    reader.inject(HALF, file, count=halves)
    expected, submitted = [], []
    for wanted, urgent in jobs:
        pieces = []
        for first, second in wanted:
            start, nbytes = min(first, second), abs(first - second)
            offset, length, skip = aligned(start, nbytes)
            to = memory(length)
            pieces.append(Piece(file, offset, length, skip + nbytes, to.ctypes.data))
            expected.append((to[skip : skip + nbytes], start))
        submitted.append(reader.submit(pieces, urgent))
    for job in reversed(submitted):
        reader.wait(job)
    reader.close()
    assert all(holds(found, start) for found, start in expected)


def test_a_misplaced_piece_is_refused(reader: Reader, file: OpenFile) -> None:
    good = blocks(file, 0, 1)
    bad = [
        good._replace(offset=1),
        good._replace(offset=-BLOCK),
        good._replace(length=100, needed=100),
        good._replace(address=good.address + 8),
        good._replace(needed=BLOCK + 1),
    ]
    for piece in bad:
        with pytest.raises(ValueError, match="blocks of 4096"):
            reader.submit([piece])


# Order


def test_urgent_goes_before_waiting_prefetch(reader: Reader, file: OpenFile) -> None:
    held = Held(reader, file)
    to = [memory(BLOCK) for _ in range(2)]
    prefetch = reader.submit([blocks(file, 1, 1, to[0])], urgent=False)
    urgent = reader.submit([blocks(file, 2, 1, to[1])])
    reader.inject(END, file)  # lets the held read go, and fails whichever comes next
    reader.wait(held.job)
    reader.wait(prefetch)
    with pytest.raises(ReadError):
        reader.wait(urgent)
    assert holds(to[0], BLOCK)


def test_a_prefetch_under_way_lets_urgent_pass(reader: Reader, file: OpenFile) -> None:
    held = Held(reader, file, count=6, urgent=False)
    urgent = reader.submit([blocks(file, 2, 1, to := memory(BLOCK))])
    reader.inject(END, file)
    with pytest.raises(ReadError):
        reader.wait(urgent)
    reader.wait(held.job)
    assert holds(held.to, 0)
    assert (to == UNTOUCHED).all()


@pytest.mark.parametrize("begun", [False, True])
def test_promote(reader: Reader, file: OpenFile, begun: bool) -> None:
    held = Held(reader, file, count=6 if begun else 1, urgent=False)
    first, second = (reader.submit([blocks(file, n, 1)], urgent=False) for n in (1, 2))
    chosen = held.job if begun else second
    assert reader.promote(chosen)
    assert not reader.promote(chosen)  # it is urgent now
    reader.inject(END, file)
    with pytest.raises(ReadError):
        reader.wait(chosen)
    for job in {held.job, first, second} - {chosen}:
        reader.wait(job)
    assert not reader.promote(chosen)


@pytest.mark.parametrize("urgent", [False, True])
def test_cancel(reader: Reader, file: OpenFile, urgent: bool) -> None:
    held = Held(reader, file)
    to = memory(3 * BLOCK)
    jobs = [reader.submit([blocks(file, 1, 3, to)], urgent), reader.submit([blocks(file, 1, 3)], urgent)]
    assert reader.cancel(jobs[0])
    assert not reader.cancel(jobs[0])
    assert not reader.cancel(held.job)  # it has begun
    reader.inject(NO_FAULT, file)
    reader.wait_all([held.job, jobs[1]])
    assert (to == UNTOUCHED).all()
    with pytest.raises(ReadError, match="cancelled"):
        reader.wait(jobs[0])
    done = reader.submit([blocks(file, 0, 1)])
    assert reader.wait_any([done]) == done
    assert not reader.cancel(done)  # it is over
    reader.wait(done)


# Waiting


def test_wait_any(reader: Reader, file: OpenFile) -> None:
    done, also_done = (reader.submit([blocks(file, 1, 1)]) for _ in range(2))
    assert reader.wait_any([also_done]) == also_done
    held = Held(reader, file)
    assert reader.wait_any([held.job], timeout=0) is None
    assert reader.wait_any([held.job], timeout=0.01) is None
    assert reader.wait_any([held.job, also_done, done]) == also_done  # the first in the list
    assert [reader.poll(job) for job in (held.job, done)] == [False, True]
    reader.inject(NO_FAULT, file)
    assert reader.wait_any([held.job], timeout=PATIENCE_S) == held.job
    reader.wait_all([held.job, done, also_done])
    with pytest.raises(ReadError, match="waited for"):
        reader.wait(done)


def test_wait_all_raises_when_all_are_over(reader: Reader, file: OpenFile) -> None:
    reader.inject(END, file)
    to = memory(4 * BLOCK)
    bad, good = reader.submit([blocks(file, 4, 4)]), reader.submit([blocks(file, 4, 4, to)])
    with pytest.raises(ReadError, match="end of the file at 16,384"):
        reader.wait_all([bad, good])
    assert holds(to, 4 * BLOCK)


def test_nothing_to_read_is_done(reader: Reader, file: OpenFile) -> None:
    reader.wait(reader.submit([]))
    reader.wait(reader.submit([blocks(file, 0, 1)._replace(needed=0)]))
    assert reader.stats()["reads"] == 0


def test_many_threads(path: Path) -> None:
    reader = Reader(threads=4, chunk=BLOCK)
    file = reader.open(path)
    good: list[int] = []

    def work(seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(30):
            first, count = numbers.randrange(60), numbers.randrange(1, 9)
            job = reader.submit([blocks(file, first, count, to := memory(count * BLOCK))], seed % 2 == 0)
            if numbers.random() < 0.3:
                reader.promote(job)
            if numbers.random() < 0.3 and reader.cancel(job):
                continue
            reader.wait(job)
            assert holds(to, first * BLOCK)
        good.append(seed)

    workers = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(12)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_S)
    assert sorted(good) == list(range(12))
    reader.close()


def test_everybody_who_waits_for_a_job_wakes(reader: Reader, file: OpenFile) -> None:
    held = Held(reader, file)
    woken: list[int | None] = []
    cancelled = reader.submit([blocks(file, 1, 1)])
    workers = [
        threading.Thread(target=lambda job=job: woken.append(reader.wait_any([job])), daemon=True)
        for job in (held.job, cancelled) * 3
    ]
    for worker in workers:
        worker.start()
    assert reader.cancel(cancelled)
    reader.inject(NO_FAULT, file)
    for worker in workers:
        worker.join(PATIENCE_S)
    assert (woken.count(held.job), woken.count(cancelled)) == (3, 3)


def test_a_signal_gets_through_to_a_waiting_program(reader: Reader, file: OpenFile) -> None:
    class Interruption(Exception):
        pass

    def interrupt(*_: object) -> None:
        raise Interruption

    def wait_with_alarm() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        reader.wait(held.job)

    held = Held(reader, file)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interruption):
            wait_with_alarm()
    finally:
        signal.signal(signal.SIGALRM, before)
    reader.inject(NO_FAULT, file)
    reader.wait(held.job)
    assert holds(held.to, 0)


# Faults


@pytest.mark.parametrize(("kind", "times"), [(errno.EIO, 1), (errno.EIO, 3), (errno.EAGAIN, 2)])
def test_a_passing_error_is_retried(reader: Reader, file: OpenFile, kind: int, times: int) -> None:
    reader.inject(kind, file, times)
    reader.wait(reader.submit([blocks(file, 0, 2, to := memory(2 * BLOCK))]))
    assert holds(to, 0)
    assert reader.stats()["retries"] == times


@pytest.mark.parametrize(
    ("kind", "times", "retries"),
    [(errno.EIO, 4, 3), (errno.EIO, 1 << 40, 3), (errno.EAGAIN, 4, 3), (errno.ENXIO, 1, 0)],
)
def test_a_lasting_error_fails_the_job(
    reader: Reader, file: OpenFile, kind: int, times: int, retries: int
) -> None:
    reader.inject(kind, file, times, from_offset=5 * BLOCK)  # in the third chunk
    job = reader.submit([blocks(file, 0, 7, to := memory(7 * BLOCK))])
    told = f"{file.path}: expected 28,672 bytes from 0, found at 16,384: {os.strerror(kind)}"
    with pytest.raises(ReadError) as failure:
        reader.wait(job)
    assert str(failure.value) == told
    assert reader.stats()["retries"] == retries
    assert holds(to[: 4 * BLOCK], 0)
    assert (to[4 * BLOCK :] == UNTOUCHED).all()  # what comes after is of no use
    assert still_reads(reader, file)


def test_an_interrupted_read_goes_on(reader: Reader, file: OpenFile) -> None:
    reader.inject(errno.EINTR, file, 50)
    reader.wait(reader.submit([blocks(file, 0, 2, to := memory(2 * BLOCK))]))
    assert holds(to, 0)
    assert reader.stats()["retries"] == 0


def test_half_a_read_is_completed(path: Path, either_way: str) -> None:
    reader = Reader(chunk=64 * BLOCK)
    file = reader.open(path)
    assert file.direct == (either_way == "direct")
    reader.inject(HALF, file, 20)
    reader.wait(reader.submit([blocks(file, 0, 50, to := memory(50 * BLOCK))]))
    assert holds(to, 0)
    assert reader.stats()["reads"] == 1
    reader.close()


def test_a_fault_keeps_to_its_file_and_offset(reader: Reader, file: OpenFile, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(CONTENT.tobytes())
    reader.inject(END, file, from_offset=4 * BLOCK)
    reader.wait(reader.submit([blocks(reader.open(other), 0, 8)]))
    reader.wait(reader.submit([blocks(file, 0, 4)]))
    with pytest.raises(
        ReadError, match=f"{file.path}: expected 32,768 bytes from 0, found the end of the file at"
    ):
        reader.wait(reader.submit([blocks(file, 0, 8)]))


@pytest.mark.parametrize("left", [0, 2 * BLOCK, 10_000])
def test_a_truncated_file(reader: Reader, path: Path, either_way: str, left: int) -> None:
    file = reader.open(path)
    assert file.direct == (either_way == "direct")
    os.truncate(path, left)
    ends = max(left, BLOCK)
    with pytest.raises(ReadError) as failure:
        reader.wait(reader.submit([blocks(file, 1, 5)]))
    assert f"{path}: expected 20,480 bytes from 4,096, found the end of the file at {ends:,}" in str(
        failure.value
    )
    assert f"had {SIZE:,} bytes" in str(failure.value)
    path.write_bytes(CONTENT.tobytes())
    assert still_reads(reader, file)


# Files


def test_check_of_an_unchanged_file(file: OpenFile) -> None:
    assert file.size == SIZE
    file.check()


def test_check_finds_a_replaced_file(file: OpenFile, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(CONTENT.tobytes())
    os.utime(copy, ns=(os.stat(file.path).st_atime_ns, os.stat(file.path).st_mtime_ns))
    copy.replace(file.path)
    with pytest.raises(ReadError, match=f"{file.path}: another file has taken its place"):
        file.check()


def test_check_finds_a_truncated_file(file: OpenFile) -> None:
    os.truncate(file.path, 1000)
    with pytest.raises(ReadError, match=f"{file.path}: truncated .* expected 300,007 bytes, found 1,000"):
        file.check()


def test_check_finds_a_written_file(file: OpenFile) -> None:
    os.utime(file.path, ns=(0, 0))
    with pytest.raises(ReadError, match=f"{file.path}: written to since"):
        file.check()


def test_check_finds_a_missing_file(file: OpenFile) -> None:
    file.path.unlink()
    with pytest.raises(ReadError, match=f"{file.path}: was open and is gone"):
        file.check()


def test_what_cannot_be_opened(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=rf"{tmp_path}/none: cannot be read: No such file"):
        reader.open(tmp_path / "none")
    with pytest.raises(ReadError, match=f"{tmp_path}: expected a file"):
        reader.open(tmp_path)


def test_a_file_is_opened_once(reader: Reader, file: OpenFile) -> None:
    assert reader.open(file.path) is file


def test_a_file_is_closed_when_nobody_uses_it(path: Path) -> None:
    reader = Reader()
    fd = reader.open(path).fd
    os.fstat(fd)
    reader.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_file_system_that_refuses_only_the_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "preadv", refuse)
    reader = Reader()
    file = reader.open(path)
    assert not file.direct
    assert still_reads(reader, file)
    reader.close()


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a file system in memory")
def test_a_file_system_in_memory(reader: Reader) -> None:
    path = Path(f"/dev/shm/penstock-test-{os.getpid()}")
    try:
        path.write_bytes(CONTENT.tobytes())
        file = reader.open(path)  # it has direct reads since Linux 6.6
        reader.wait(reader.submit([blocks(file, 0, 74, to := memory(74 * BLOCK))]))
    finally:
        path.unlink()
    assert holds(to[:SIZE], 0)


def cached_blocks(path: Path) -> set[int]:
    """Blocks of the file that the page cache holds."""
    with open(path, "rb") as handle:
        mapped = np.frombuffer(mmap.mmap(handle.fileno(), 0, prot=mmap.PROT_READ), dtype=np.uint8)
    found = np.zeros(-(-mapped.size // BLOCK), np.uint8)
    address, nbytes = ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(mapped.size)
    assert ctypes.CDLL(None).mincore(address, nbytes, ctypes.c_void_p(found.ctypes.data)) == 0
    return set(np.flatnonzero(found & 1).tolist())


def test_the_page_cache_does_not_fill(path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_direct(monkeypatch)
    with open(path, "rb") as other:
        os.fsync(other.fileno())
        os.posix_fadvise(other.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_blocks(path):
            pytest.skip("this file system is its own cache")
        os.posix_fadvise(other.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(other.fileno(), BLOCK, 20 * BLOCK)
    reader.wait(reader.submit([blocks(reader.open(path), 0, 8)]))
    assert cached_blocks(path) == {20}  # somebody else's


# The reader itself


def test_close_while_reads_wait(reader: Reader, file: OpenFile) -> None:
    held, told = Held(reader, file, count=6), []
    jobs = [reader.submit([blocks(file, 1, 1)], urgent) for urgent in (False, True)]

    def wait(job: int) -> None:
        try:
            reader.wait(job)
        except ReadError as failure:
            told.append(str(failure))

    workers = [threading.Thread(target=wait, args=(job,), daemon=True) for job in (held.job, *jobs)]
    for worker in workers:
        worker.start()
    reader.close()
    assert reader.stats()["in_flight"] == 0
    for worker in workers:
        worker.join(PATIENCE_S)
    closed = f"{file.path}: bytes from {{}}: the reader was closed before they were read"
    assert sorted(told) == sorted(closed.format(at) for at in ("8,192", "4,096", "4,096"))
    with pytest.raises(ReadError, match="closed"):
        reader.submit([blocks(file, 0, 1)])
    reader.close()


def test_threads_start_with_the_first_job_and_end_with_the_reader(path: Path) -> None:
    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    before = threads()  # some of them may be about to end
    reader = Reader(threads=5)
    assert threads() <= before
    assert still_reads(reader, reader.open(path))
    until(lambda: len(threads() - before) == 5)
    own = threads() - before
    del reader
    until(lambda: not threads() & own)


def test_statistics(reader: Reader, file: OpenFile) -> None:
    assert set(reader.stats().values()) == {0}
    reader.wait(reader.submit([blocks(file, 0, 5)]))  # chunks of 2, 2 and 1
    held = Held(reader, file)
    first = reader.stats()
    assert first["in_flight"] == 1
    until(lambda: reader.stats()["active_ns"] > first["active_ns"])  # the held one counts already
    reader.inject(NO_FAULT, file)
    reader.wait(held.job)
    found = reader.stats()
    assert (found["bytes"], found["reads"], found["in_flight"]) == (6 * BLOCK, 4, 0)
    assert 0 < found["longest_ns"] < found["busy_ns"]
    assert found["active_ns"] == found["busy_ns"]  # one thread: never two at a time


def test_active_time_counts_once_what_happens_at_once(path: Path) -> None:
    reader = Reader(threads=2)
    file = reader.open(path)
    reader.inject(STALL, file, count=2)
    jobs = [reader.submit([blocks(file, 0, 1)]) for _ in range(2)]
    until(lambda: reader.stats()["in_flight"] == 2)
    reader.inject(NO_FAULT, file)
    reader.wait_all(jobs)
    found = reader.stats()
    assert found["longest_ns"] <= found["active_ns"] < found["busy_ns"]
    reader.close()


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_after_a_fork(reader: Reader, file: OpenFile) -> None:
    assert still_reads(reader, file)
    child = os.fork()
    if child == 0:
        try:
            reader.submit([blocks(file, 0, 1)])
        except ReadError:
            reader.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert still_reads(reader, file)
