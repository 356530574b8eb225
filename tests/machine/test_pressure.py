"""Signs of short memory, from kernels that tell much, little or nothing."""

import mmap
import os
from pathlib import Path

import pytest

from penstock.machine.disk import IN_MEMORY, find_disk
from penstock.machine.pressure import Paging, Pressure, Stall, group_pressure, machine_pressure, read_paging
from tests.machine.fake import FakeKernel

LINES = "some avg10=1.50 avg60=0.70 avg300=0.20 total=123456\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=99"
TOLD = Pressure(Stall(1.5, 123456), Stall(0.25, 99))


def test_pressure_of_the_machine(kernel: FakeKernel) -> None:
    assert machine_pressure(kernel.proc) is None
    kernel.write(kernel.proc, {"pressure/memory": LINES})
    assert machine_pressure(kernel.proc) == TOLD


@pytest.mark.parametrize(
    "content", ["", "some avg10=x total=1", "some avg10=1.0\nfull avg10=1.0", LINES.split("\n")[0]]
)
def test_pressure_that_cannot_be_understood(kernel: FakeKernel, content: str) -> None:
    kernel.write(kernel.proc, {"pressure/memory": content})
    assert machine_pressure(kernel.proc) is None


def test_pressure_of_the_own_group(kernel: FakeKernel) -> None:
    kernel.belong("0::/a/b")
    kernel.unified("a", memory_pressure="some avg10=9.00 total=1\nfull avg10=9.00 total=1")
    kernel.unified("a/b", memory_pressure=LINES)
    assert group_pressure(kernel.proc, kernel.cgroups) == TOLD
    kernel.belong("3:memory:/a", "0::/a/b")
    assert group_pressure(kernel.proc, kernel.cgroups) is None


def test_paging(kernel: FakeKernel) -> None:
    assert read_paging(kernel.proc) == Paging(None, None, None)
    fields = "S 1 2 3 4 5 6 70 80 901 1002 11 12"
    kernel.write(
        kernel.proc, {"self/stat": f"42 (a) S (b c) {fields}", "vmstat": "pgfault 5\npgmajfault 77\npswpin 8"}
    )
    assert read_paging(kernel.proc) == Paging(901, 77, 8)


def test_a_page_from_disk_is_counted(tmp_path: Path) -> None:
    if find_disk(tmp_path).filesystem in IN_MEMORY:
        pytest.skip("files here are in memory already")
    path = tmp_path / "pages"
    path.write_bytes(os.urandom(8 << 20))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    before = read_paging()
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        assert len(mapped[:: mmap.PAGESIZE]) == 2048
    os.close(fd)
    after = read_paging()
    assert after.own_major_faults is not None
    assert before.own_major_faults is not None
    assert after.own_major_faults > before.own_major_faults
