"""The processor: names, instruction sets, and quotas of control groups."""

import os

import pytest

from penstock.machine.cpu import Cpu, cache_bytes, read_cpu
from tests.machine.fake import FakeKernel

X86 = "processor : 0\nmodel name : Some CPU @ 3 GHz\nflags : fpu avx2 fma avx512_vnni\n\nmodel name : Other"
ARM = "processor : 0\nFeatures : fp asimd asimddp i8mm\nCPU implementer : 0x41"


def test_names_and_instructions(kernel: FakeKernel) -> None:
    kernel.write(kernel.proc, {"cpuinfo": X86})
    cpu = read_cpu(kernel.proc, kernel.cgroups)
    assert (cpu.model, cpu.instructions) == ("Some CPU @ 3 GHz", ("avx2", "fma", "avx512_vnni"))
    assert cpu.cores == cpu.usable == len(os.sched_getaffinity(0))
    kernel.write(kernel.proc, {"cpuinfo": ARM})
    cpu = read_cpu(kernel.proc, kernel.cgroups)
    assert (cpu.model, cpu.instructions) == (os.uname().machine, ("asimd", "asimddp", "i8mm"))


def test_cores_that_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert read_cpu().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_quota_of_the_second_version_is_the_strictest_on_the_way_up(kernel: FakeKernel) -> None:
    kernel.belong("0::/a/b")
    kernel.unified("a/b", cpu_max="max 100000")
    assert read_cpu(kernel.proc, kernel.cgroups).quota is None
    kernel.unified("a/b", cpu_max="400000 100000")
    kernel.unified("a", cpu_max="150000 100000")
    assert read_cpu(kernel.proc, kernel.cgroups).quota == 1.5


def test_quota_of_the_first_version(kernel: FakeKernel) -> None:
    kernel.belong("3:cpu,cpuacct:/a", "0::/")
    kernel.write(kernel.cgroups / "cpu", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000})
    kernel.write(kernel.cgroups / "cpu/a", {"cpu.cfs_quota_us": 25000, "cpu.cfs_period_us": 50000})
    assert read_cpu(kernel.proc, kernel.cgroups).quota == 0.5


@pytest.mark.parametrize(("quota", "usable"), [(None, 8), (0.5, 1), (1.9, 1), (2.0, 2), (100.0, 8)])
def test_threads_that_a_quota_never_halts(quota: float | None, usable: int) -> None:
    assert Cpu("", 8, quota, ()).usable == usable


def test_the_largest_cache(kernel: FakeKernel) -> None:
    assert cache_bytes(kernel.sys) == 0
    caches = kernel.sys / "devices/system/cpu/cpu0/cache"
    kernel.write(caches, {"index0/size": "48K", "index2/size": "2048K", "index3/size": "32M"})
    assert cache_bytes(kernel.sys) == 32 << 20
