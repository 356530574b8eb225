"""Who is served first, who waits for whom, and how reading ends."""

import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest

from penstock.errors import ReadError
from penstock.storage.reader import BLOCK, END, NO_FAULT, OpenFile, Reader
from tests.storage.reader.pieces import PATIENCE_S, UNTOUCHED, Held, blocks, holds, memory, still_reads, until


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
