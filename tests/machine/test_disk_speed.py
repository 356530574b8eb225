"""Measuring a disk, and remembering what was measured."""

import json
import mmap
import os
import threading
import time
from pathlib import Path

import pytest

from penstock.errors import OptionError, ReadError
from penstock.machine import disk_speed
from penstock.machine.disk import open_direct
from penstock.machine.disk_speed import NOTES, Measured, measured, read_bandwidth
from penstock.machine.notes import notes_path


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is large enough for the purpose, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_speed, "SMALLEST_FILE", 24 << 20)
    monkeypatch.setattr(disk_speed, "SECONDS", 0.05)
    monkeypatch.setattr(disk_speed, "MOST_SECONDS", 60.0)  # nobody is late, however busy the machine is
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 20) * 24)
    return path


@pytest.mark.parametrize("direct", [True, False])
def test_speed_is_bytes_over_the_time_until_the_last_of_them(
    large: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    real = os.preadv
    begun: list[float] = []
    ended: list[float] = []
    lengths: list[int] = []

    def preadv(fd: int, buffers: list[mmap.mmap], offset: int) -> int:
        begun.append(time.perf_counter())
        assert offset % (4 << 20) == 0
        lengths.append(real(fd, buffers, offset))
        ended.append(time.perf_counter())
        return lengths[-1]

    fd = open_direct(large)[0] if direct else os.open(large, os.O_RDONLY)
    monkeypatch.setattr(disk_speed, "open_direct", lambda _: (fd, direct))
    monkeypatch.setattr(os, "preadv", preadv)
    before = time.perf_counter()
    speed = read_bandwidth(large, seconds=0.05)
    assert set(lengths) == {7 << 20}
    assert sum(lengths) / (time.perf_counter() - before) <= speed
    assert speed <= sum(lengths) / (max(ended) - min(begun))


def test_a_disk_that_hangs_is_not_waited_for(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    fd = os.open(large, os.O_RDONLY)
    monkeypatch.setattr(disk_speed, "open_direct", lambda _: (fd, True))
    monkeypatch.setattr(disk_speed, "MOST_SECONDS", 0.1)
    monkeypatch.setattr(os, "preadv", lambda *_: int(end.wait()))
    with pytest.raises(ReadError, match=r"large: no read of 7,340,032 bytes came back"):
        read_bandwidth(large, seconds=0.01)
    end.set()


def test_a_disk_that_fails(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    fd = os.open(large, os.O_RDONLY)
    monkeypatch.setattr(disk_speed, "open_direct", lambda _: (fd, True))
    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(ReadError, match="large: cannot be read: Input/output error"):
        read_bandwidth(large)


def test_small_files_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"abc")
    for path in (tmp_path / "small", tmp_path, tmp_path / "nowhere"):
        with pytest.raises(OptionError, match="expected a file of at least 134,217,728"):
            read_bandwidth(path)


def test_speed_is_remembered_for_the_device(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([1e9, 2e9])
    monkeypatch.setattr(disk_speed, "read_bandwidth", lambda _: next(speeds))
    first = measured(large)
    assert first[::2] == (1e9, False)
    assert time.time() - first.when < 60
    assert measured(large.parent) == Measured(1e9, first.when, cached=True)  # any path on the same device
    assert measured(large, again=True).bytes_per_second == 2e9
    assert measured(large).bytes_per_second == 2e9
    assert [path.name for path in notes_path(NOTES).parent.iterdir()] == ["disks.json"]


def test_other_devices_stay_remembered(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_speed, "read_bandwidth", lambda _: 1e9)
    notes_path(NOTES).parent.mkdir(parents=True, exist_ok=True)
    notes_path(NOTES).write_text('{"8:1 xfs 1000": {"bytes_per_second": 5.0, "when": 1.0}}')
    measured(large)
    assert len(found := json.loads(notes_path(NOTES).read_text())) == 2
    assert found["8:1 xfs 1000"]["bytes_per_second"] == 5.0


@pytest.mark.parametrize(
    "entry",
    [
        "1",
        "{}",
        '{"bytes_per_second": "fast", "when": 1.0}',
        '{"bytes_per_second": NaN, "when": 1.0}',
        '{"bytes_per_second": -1.0, "when": 1.0}',
        '{"bytes_per_second": 1.0, "when": Infinity}',
        '{"bytes_per_second": 1.0',
    ],
)
def test_a_damaged_cache_is_measured_anew(large: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    monkeypatch.setattr(disk_speed, "read_bandwidth", lambda _: 3e9)
    measured(large)
    (key,) = json.loads(notes_path(NOTES).read_text())
    notes_path(NOTES).write_text(f'{{"{key}": {entry}}}')
    assert measured(large)[::2] == (3e9, False)
    assert measured(large)[::2] == (3e9, True)
    for content in ("", "[]", "\x00"):
        notes_path(NOTES).write_text(content)
        assert measured(large)[::2] == (3e9, False)


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_speed, "read_bandwidth", lambda _: 3e9)
    monkeypatch.setenv("XDG_CACHE_HOME", str(large))  # a file, where a folder would have to be
    assert measured(large)[::2] == measured(large)[::2] == (3e9, False)
