"""Every fault of a read is told, and costs nobody else anything."""

import errno
import os
from pathlib import Path

import pytest

from penstock.errors import ReadError
from penstock.storage.reader import BLOCK, END, HALF, OpenFile, Reader
from tests.storage.reader.pieces import CONTENT, SIZE, UNTOUCHED, blocks, holds, memory, still_reads


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
