"""Memory as this process may have it: limits of control groups, old and new, around each other and in containers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.machine.groups import find_groups
from penstock.machine.memory import GroupMemory, Memory, read_memory
from tests.machine.fake import FakeKernel

MIB, GIB = 1 << 20, 1 << 30
NO_LIMIT_V1 = 9223372036854771712


def first_version(limit: int, usage: int, inactive: int = 0, active: int = 0) -> dict[str, object]:
    return {
        "memory.limit_in_bytes": limit,
        "memory.usage_in_bytes": usage,
        "memory.stat": f"active_file 7\ninactive_file 7\ntotal_inactive_file {inactive}\ntotal_active_file {active}",
    }


def read(kernel: FakeKernel) -> Memory:
    return read_memory(kernel.proc, kernel.cgroups)


def test_a_machine_without_groups(kernel: FakeKernel) -> None:
    memory = read(kernel)
    assert memory == Memory(total=32 * GIB, available=16 * GIB, swap=MIB)
    assert memory.tightest is None
    assert (memory.size, memory.room) == (32 * GIB, 16 * GIB)
    assert memory.safe_budget() == 16 * GIB - 32 * GIB // 20


def test_this_machine() -> None:
    memory = read_memory()
    assert 0 < memory.available <= memory.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 <= memory.safe_budget() < memory.available


def test_kernel_files_that_are_missing_or_damaged(kernel: FakeKernel, tmp_path: Path) -> None:
    kernel.write(
        kernel.proc, {"meminfo": "nonsense\nMemTotal: many kB\nMemAvailable 12", "self/cgroup": "::\nx\n0:"}
    )
    real = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for memory in (read(kernel), read_memory(tmp_path / "nowhere", tmp_path / "nowhere")):
        assert memory == Memory(total=real, available=real // 2, swap=0)


def test_first_version_counts_page_cache_as_room(kernel: FakeKernel) -> None:
    kernel.belong("4:cpuacct,cpu:/", "3:memory:/work")
    kernel.write(kernel.cgroups / "memory", first_version(NO_LIMIT_V1, 9 * GIB))
    kernel.write(
        kernel.cgroups / "memory/work", first_version(8 * GIB, 5 * GIB, inactive=GIB, active=GIB // 2)
    )
    memory = read(kernel)
    assert memory.groups == (GroupMemory(8 * GIB, 5 * GIB, GIB + GIB // 2),)
    assert memory.room == 4 * GIB + GIB // 2
    assert memory.margin == 512 * MIB  # a twentieth of eight would be less
    assert memory.safe_budget() == 4 * GIB


def test_second_version_minds_every_group_around_it(kernel: FakeKernel) -> None:
    kernel.belong("0::/slice/service")
    stat = "anon 1\nfile 99\ninactive_file 1048576\nactive_file 1048576\n"
    kernel.unified(
        "slice/service", memory_max="max", memory_high=6 * GIB, memory_current=GIB, memory_stat=stat
    )
    kernel.unified("slice", memory_max=8 * GIB, memory_high="max", memory_current=7 * GIB, memory_stat=stat)
    memory = read(kernel)
    assert memory.tightest is not None
    assert memory.tightest.limit == memory.size == 6 * GIB
    # The outer group has the larger limit, but its other members have left less of it.
    assert memory.room == GIB + 2 * MIB


def test_available_memory_of_the_machine_may_be_the_smaller_one(kernel: FakeKernel) -> None:
    kernel.belong("0::/a")
    kernel.unified("a", memory_max=30 * GIB, memory_current=GIB, memory_stat="")
    assert read(kernel).room == 16 * GIB


def test_a_full_group_has_no_room(kernel: FakeKernel) -> None:
    kernel.belong("0::/a")
    kernel.unified("a", memory_max=GIB, memory_current=GIB + MIB, memory_stat="")
    assert read(kernel).room == read(kernel).safe_budget() == 0


def test_both_versions_mounted(kernel: FakeKernel) -> None:
    kernel.belong("1:memory:/old", "0::/new")
    kernel.write(kernel.cgroups / "memory/old", first_version(2 * GIB, GIB))
    kernel.write(kernel.cgroups / "unified/new", {"cpu.max": "max 100000"})
    assert read(kernel).size == 2 * GIB
    assert find_groups("cpu", kernel.proc, kernel.cgroups) == (
        2,
        (kernel.cgroups / "unified/new", kernel.cgroups / "unified"),
    )


def test_a_container_sees_the_path_of_the_host_and_only_its_own_folder(kernel: FakeKernel) -> None:
    kernel.belong("5:memory:/docker/0123abc/inner")
    kernel.write(kernel.cgroups / "memory", first_version(3 * GIB, GIB))
    kernel.write(kernel.cgroups / "memory/inner", first_version(NO_LIMIT_V1, GIB))
    assert find_groups("memory", kernel.proc, kernel.cgroups).folders == (
        kernel.cgroups / "memory/inner",
        kernel.cgroups / "memory",
    )
    assert read(kernel).size == 3 * GIB
    kernel.belong("5:memory:/../elsewhere")
    assert read(kernel).size == 3 * GIB


def test_controllers_that_share_a_mount(kernel: FakeKernel) -> None:
    kernel.belong("2:cpu,cpuacct:/a:b")
    (kernel.cgroups / "cpu,cpuacct" / "a:b").mkdir(parents=True)
    groups = find_groups("cpu", kernel.proc, kernel.cgroups)
    assert groups == (1, (kernel.cgroups / "cpu,cpuacct/a:b", kernel.cgroups / "cpu,cpuacct"))


# ── a real group ──────────────────────────────────────────────────────────────────────────────────────────────

HOLDER = f"""
input()
held = bytearray(b"x") * {64 * MIB}
print("held", flush=True)
input()
"""


@pytest.fixture
def nested_groups() -> Iterator[tuple[Path, Path]]:
    """Two new groups, one in the other, inside the one this process is in."""
    groups = find_groups("memory")
    if groups.version != 1:
        pytest.skip("only groups of the first version can be made anywhere")
    outer = groups.folders[0] / f"penstock-test-{os.getpid()}"
    inner = outer / "inner"
    try:
        inner.mkdir(parents=True)
        (outer / "memory.limit_in_bytes").write_text(str(512 * MIB))
        (inner / "memory.limit_in_bytes").write_text(str(768 * MIB))
        yield outer, inner
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    finally:
        for folder in (inner, outer):
            with suppress(OSError):
                folder.rmdir()


def test_a_process_in_a_real_group(nested_groups: tuple[Path, Path], tmp_path: Path) -> None:
    _, inner = nested_groups
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            (inner / "cgroup.procs").write_text(str(holder.pid))
            # As that process would see it.
            (tmp_path / "self").symlink_to(f"/proc/{holder.pid}")
            (tmp_path / "meminfo").symlink_to("/proc/meminfo")
            before = read_memory(tmp_path)
            holder.stdin.write("\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "held\n"
            after = read_memory(tmp_path)
        finally:
            holder.kill()
    assert before.size == after.size == 512 * MIB
    assert [group.limit for group in before.groups][:2] == [768 * MIB, 512 * MIB]
    assert 60 * MIB < before.room - after.room < 80 * MIB
