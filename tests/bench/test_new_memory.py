"""What a run's new memory takes, as `plan` measures it."""

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.bench import new_memory
from penstock.bench.new_memory import Filling
from penstock.machine.notes import remember
from penstock.machine.pages import reserve
from penstock.storage.page_cache import Absent, Gaps, Window
from penstock.storage.source import ExpertSource
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.files import MappedFile
from tests.bench.test_expectation import GIB, planned


def test_a_mapped_file_comes_to_new_memory(
    flash: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried as memory is, and once memory was in use; what is still slow will be as slow as before."""
    (tmp_path / "file").write_bytes(bytes(8 << 20))
    file, taken = MappedFile(tmp_path / "file"), list[str]()

    def measure_filling(*_: object) -> Filling:
        taken.append("all")
        return Filling(3e-9, 1e-9, 4e-9, 3 * 10**8, slow=5 * 10**8)

    def try_to_bring(nbytes: int, windows: Sequence[Window]) -> Absent:
        assert len(windows) == 2
        return Absent(nbytes, 5.0, 1.0) if taken else Absent(nbytes, 9.0, 3.0)

    monkeypatch.setattr(new_memory, "measure_filling", measure_filling)
    monkeypatch.setattr(new_memory, "try_to_bring", try_to_bring)
    gaps = Gaps(10**9, tuple((file, start << 20, 1 << 20) for start in range(4)))
    new = new_memory.new_memory(planned(flash, 200 * GIB), ExpertSource(flash), gaps)
    quick = new_memory.LASTS / 2  # what is not slow any more
    assert new.absent == pytest.approx((10**9, 9.0 - 4.0 * quick, 3.0 - 2.0 * quick))
    assert (new.soonest.seconds, new.latest.seconds) == (5.0, 9.0)


def test_a_slow_moment_is_remembered_for_a_while(flash: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, found = planned(flash, 32 * GIB), []
    for seconds in (1e-10, 1e-9, 1e-10, 1e-10):
        now = Filling(seconds, seconds, seconds)
        monkeypatch.setattr(new_memory, "measure_filling", lambda *_, now=now: now)
        monkeypatch.setattr(new_memory, "slower_at_first", lambda *_, seconds=seconds: 2 * seconds)
        new = new_memory.new_memory(plan, ExpertSource(flash))
        found.append((new.filling.usual, new.young))
    lasts = new_memory.LASTS
    slow = (1e-10, 1e-9, 1e-9, new_memory.FORGETS * 1e-9)  # the slowest that is remembered
    usual = [
        lasts * now + (1 - lasts) * slowest
        for now, slowest in zip((1e-10, 1e-9, 1e-10, 1e-10), slow, strict=True)
    ]
    assert found == [pytest.approx((seconds, 2 * seconds)) for seconds in usual]
    remember("filling", "seconds", "long")
    assert new_memory.new_memory(plan, ExpertSource(flash)).filling.usual == pytest.approx(1e-10)


class Host:
    """Of a virtual machine: a page takes a second the first time, and a hundredth later.  Its clock is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.clock, self.given = 0.0, set[int]()
        monkeypatch.setattr(new_memory, "PIECE", 4 * mmap.PAGESIZE)
        monkeypatch.setattr(new_memory, "PATIENCE", 6.0)
        monkeypatch.setattr("penstock.bench.new_memory.time.perf_counter", lambda: self.clock)
        monkeypatch.setattr(new_memory, "_fill", self.fill)

    def fill(self, pages: NDArray[np.uint8]) -> float:
        first = pages.ctypes.data
        asked = set(range(first, first + len(pages) * mmap.PAGESIZE, mmap.PAGESIZE))
        seconds = len(asked - self.given) + 0.01 * len(asked & self.given)
        self.clock += seconds
        self.given |= asked
        return seconds / (len(pages) * mmap.PAGESIZE)


PAGE = 1 / mmap.PAGESIZE


def test_memory_that_was_filled_is_quick_for_who_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is over with the second of four pieces: the others stay slow."""
    Host(monkeypatch)
    found = new_memory.measure_filling(reserve(16 * mmap.PAGESIZE, large=False), 1 << 30, 1)
    half = 8 * mmap.PAGESIZE
    assert found == pytest.approx((0.505 * PAGE, 0.01 * PAGE, PAGE, half, half))


def test_memory_that_holds_files_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of sixteen pages twelve are unused."""
    Host(monkeypatch)
    found = new_memory.measure_filling(reserve(16 * mmap.PAGESIZE, large=False), 12 * mmap.PAGESIZE, 1)
    assert (found.nbytes, found.slow) == (8 * mmap.PAGESIZE, 4 * mmap.PAGESIZE)
    assert found.usual == pytest.approx((4 + 12 * 0.01) / 16 * PAGE)


def test_no_more_is_filled_than_will_be_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    found = new_memory.measure_filling(reserve(4 * mmap.PAGESIZE, large=False), 1 << 30, 2)
    assert (found.nbytes, found.slow, len(host.given)) == (4 * mmap.PAGESIZE, 0, 4)
