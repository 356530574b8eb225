"""Files as they come: replaced, missing, in memory, on systems that refuse direct reads; and the page cache."""

import ctypes
import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ReadError
from penstock.storage.reader import BLOCK, OpenFile, Reader
from tests.storage.reader.pieces import CONTENT, SIZE, blocks, holds, memory, refuse_direct, still_reads


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
