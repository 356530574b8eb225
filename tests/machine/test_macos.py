"""What is asked on macOS, asked on Linux: of a made-up kernel, and of one that knows nothing."""

import fcntl
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.machine import macos
from penstock.machine.cpu import Cpu, cache_bytes, read_cpu
from penstock.machine.disk import create_direct, find_disk, open_direct, sync_data
from penstock.machine.memory import Memory, read_memory, resident_bytes
from penstock.machine.pages import give_back, give_back_freed, reserve
from penstock.machine.pressure import group_pressure, machine_pressure, read_paging
from penstock.weights.synth import synth
from tests.machine.fake_mac import FakeMac

GIB = 1 << 30
TOTAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
F_NOCACHE, F_FULLFSYNC = 48, 51


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS, as it looks where every call fails."""
    monkeypatch.setattr(macos, "HERE", True)
    monkeypatch.setattr(macos.KERNEL, "_calls", None)


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(macos, "HERE", True)
    monkeypatch.setattr(macos, "KERNEL", FakeMac())


@pytest.mark.usefixtures("mac")
def test_memory_is_what_is_free_or_holds_files() -> None:
    assert read_memory() == Memory(TOTAL, (1000 - 100 + 20 + 400) * mmap.PAGESIZE, 2 * GIB)
    assert resident_bytes() == 3 * GIB


@pytest.mark.usefixtures("mac")
def test_the_processor_has_its_fast_cores() -> None:
    assert read_cpu() == Cpu("Apple M3 Max", 12, None, ("asimd", "asimddp"))
    assert cache_bytes() == 16 << 20


@pytest.mark.usefixtures("mac")
def test_the_disk_is_that_of_the_mount(tmp_path: Path) -> None:
    disk = find_disk(tmp_path)
    assert (disk.name, disk.mount, disk.filesystem) == ("/dev/disk3s5", Path("/"), "apfs")
    assert disk.kind == "solid-state disk"
    assert 0 < disk.free <= disk.size


@pytest.mark.usefixtures("mac")
def test_pages_are_counted_and_pressure_is_not() -> None:
    paging = read_paging()
    assert paging.own_major_faults is not None
    assert (paging.major_faults, paging.swap_ins) == (5, 3)


@pytest.mark.usefixtures("nowhere")
def test_a_kernel_that_says_nothing_is_enough(tmp_path: Path) -> None:
    assert read_memory() == Memory(TOTAL, TOTAL // 2, 0)
    assert read_cpu().cores == os.cpu_count()
    assert cache_bytes() == 0
    assert find_disk(tmp_path).filesystem == "unknown"
    assert read_paging()[1:] == (None, None)
    assert resident_bytes() is None


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("granted", [True, False])
def test_the_cache_is_turned_off_for_a_descriptor(
    granted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fake(fd: int, command: int, value: int) -> int:
        asked.append((os.fstat(fd).st_size, command, value))
        if not granted:
            raise OSError(45, "Operation not supported")
        return 0

    monkeypatch.setattr(fcntl, "fcntl", fake)
    path = tmp_path / "file"
    fd = create_direct(path)
    os.write(fd, b"some bytes")  # of any length: nothing has to be aligned
    os.close(fd)
    fd, direct = open_direct(path)
    assert direct is granted
    assert os.pread(fd, 100, 0) == b"some bytes"
    os.close(fd)
    assert asked == [(0, F_NOCACHE, 1), (10, F_NOCACHE, 1)]


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("granted", [True, False])
def test_a_file_is_brought_to_the_disk_itself(
    granted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """macOS's `fsync` is the second best: it leaves bytes in the memory of the disk."""
    done: list[int | str] = []

    def fake(_: int, command: int) -> int:
        if not granted:
            raise OSError(45, "Operation not supported")
        done.append(command)
        return 0

    monkeypatch.setattr(fcntl, "fcntl", fake)
    monkeypatch.setattr(os, "fsync", lambda _: done.append("fsync"))
    with open(tmp_path / "file", "wb") as file:
        sync_data(file.fileno())
    assert done == [F_FULLFSYNC if granted else "fsync"]


@pytest.mark.usefixtures("nowhere")
def test_memory_can_be_given_back() -> None:
    memory = reserve(1 << 20, large=True)
    memory[:4] = b"abcd"
    give_back(memory, 0, 1 << 20)
    memory[:4] = b"efgh"
    assert memory[:4] == b"efgh"
    give_back_freed()


def logits(path: Path) -> tuple[np.ndarray, ...]:
    """Experts stream from the disk, come and go."""
    with penstock.Engine(path, context=256, streaming="direct", memory="300MiB") as engine:
        session = engine.session()
        found = [session.feed(list(range(40)), logits="all"), *(session.feed([token]) for token in range(20))]
        engine.park()
        return tuple(np.array(part) for part in found)


def test_the_answer_is_the_same(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """To the bit, with everything that only Linux has out of the way."""
    path = tmp_path / "model.gguf"
    synth(path, seed=3)
    on_linux = logits(path)
    monkeypatch = request.getfixturevalue("monkeypatch")
    request.getfixturevalue("nowhere")
    for name in ("sched_getaffinity", "posix_fadvise", "fdatasync", "O_DIRECT", "sched_setaffinity"):
        monkeypatch.delattr(os, name, raising=False)
    for name in ("MADV_HUGEPAGE", "MADV_NOHUGEPAGE"):
        monkeypatch.delattr(mmap, name, raising=False)
    monkeypatch.setattr("penstock.machine.kernel_files.Path.read_text", missing)
    assert machine_pressure() is group_pressure() is None
    for a, b in zip(on_linux, logits(path), strict=True):
        assert a.tobytes() == b.tobytes()


def missing(self: Path, *_: object, **__: object) -> str:
    raise FileNotFoundError(2, "No such file or directory", str(self))
