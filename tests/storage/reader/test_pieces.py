"""The right bytes land in the right places."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.storage.reader import BLOCK, HALF, NO_FAULT, STALL, OpenFile, Piece, Reader, aligned
from tests.storage.reader.pieces import (
    CONTENT,
    SIZE,
    UNTOUCHED,
    Held,
    blocks,
    holds,
    memory,
    refuse_direct,
    until,
)


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


def test_nothing_to_read_is_done(reader: Reader, file: OpenFile) -> None:
    reader.wait(reader.submit([]))
    reader.wait(reader.submit([blocks(file, 0, 1)._replace(needed=0)]))
    assert reader.stats()["reads"] == 0


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
