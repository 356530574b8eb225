"""What is missing of mapped files is found, and tried."""

import mmap
import os
from pathlib import Path

import pytest

from penstock.storage import page_cache
from penstock.storage.page_cache import Gaps, Window, find_gaps, try_to_bring
from penstock.weights.files import MappedFile

SIZE = 4 << 20


@pytest.fixture
def file(tmp_path: Path) -> MappedFile:
    (tmp_path / "file").write_bytes(os.urandom(SIZE))
    return MappedFile(tmp_path / "file")


def forget_half(monkeypatch: pytest.MonkeyPatch, file: MappedFile) -> None:
    middle = file.bytes.ctypes.data + SIZE // 2
    monkeypatch.setattr(page_cache, "_is_here", lambda address: address < middle)


def test_gaps_are_counted_and_shown(file: MappedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_half(monkeypatch, file)
    gaps = find_gaps([file])
    assert gaps.nbytes == pytest.approx(SIZE / 2, rel=0.01)
    assert all(start >= SIZE // 2 and start + length <= SIZE for _, start, length in gaps.windows)
    assert len(gaps.windows) == 2 * page_cache.THREADS


@pytest.mark.parametrize("here", [True, None])
def test_nothing_is_missing_or_nobody_tells(
    file: MappedFile, monkeypatch: pytest.MonkeyPatch, here: bool | None
) -> None:
    monkeypatch.setattr(page_cache, "_is_here", lambda _: here)
    assert find_gaps([file]) == Gaps()
    assert try_to_bring(0, ()).seconds == 0.0


def test_the_whole_takes_as_much_longer_as_it_is_larger(
    file: MappedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that goes on with every page that is touched: more slowly after the first time."""
    clock, touched = [0.0], set[tuple[int, int]]()

    def touch(window: Window, stride: int) -> None:
        _, start, length = window
        for page in range(start, start + length, stride):
            clock[0] += 0.25 if (page, stride) in touched or stride != mmap.PAGESIZE else 1.0
            touched.add((page, stride))

    monkeypatch.setattr(page_cache, "_touch", touch)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    length = 1 << 20
    found = try_to_bring(10 * length, [(file, 0, length)])
    assert found.nbytes == 10 * length
    assert found.seconds == 10 * 0.25 * length / page_cache.STRIDE
    assert found.working == 10 * 0.75 * length / mmap.PAGESIZE
