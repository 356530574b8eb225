"""Where a path lies, on mounts that hide, contain and outnumber each other."""

import os
from pathlib import Path

import pytest

from penstock.errors import ReadError
from penstock.machine.disk import Disk, find_disk, open_direct
from tests.machine.fake import FakeKernel


def code(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def mounts(kernel: FakeKernel, *lines: str) -> None:
    kernel.write(kernel.proc, {"self/mountinfo": "\n".join(f"27 1 {line}" for line in lines)})


def test_the_disk_of_this_file() -> None:
    disk = find_disk(Path(__file__))
    assert Path(__file__).resolve().is_relative_to(disk.mount)
    assert disk.mount.is_mount()
    assert disk.size >= disk.free > 0


def test_a_partition_asks_its_disk(kernel: FakeKernel, tmp_path: Path) -> None:
    mounts(kernel, f"{code(tmp_path)} / / rw,relatime shared:1 master:2 - ext4 /dev/nvme0n1p2 rw,discard")
    disk_folder = kernel.sys / "devices/pci0/nvme0n1"
    kernel.write(disk_folder, {"queue/rotational": 0, "size": 1000, "nvme0n1p2/size": 600})
    link = kernel.sys / "dev/block" / code(tmp_path)
    link.parent.mkdir(parents=True)
    link.symlink_to(disk_folder / "nvme0n1p2")
    disk = find_disk(tmp_path, kernel.proc, kernel.sys)
    assert disk == Disk(
        code(tmp_path), "/dev/nvme0n1p2", Path("/"), "ext4", rotational=False, size=600 * 512, free=disk.free
    )
    assert disk.kind == "NVMe"


def test_the_innermost_mount_of_the_device_counts(kernel: FakeKernel, tmp_path: Path) -> None:
    deep = tmp_path / "with space" / "deep"
    deep.mkdir(parents=True)
    spaced = str(tmp_path / "with space").replace(" ", "\\040")
    mounts(
        kernel,
        f"{code(tmp_path)} / / rw - ext4 /dev/a rw",
        f"{code(tmp_path)} /b {spaced} rw - ext4 /dev/b rw",
        f"9:9 / {spaced}/deep rw - xfs /dev/hidden rw",  # something that is mounted no longer on top
        f"{code(tmp_path)} / {tmp_path}/with rw - ext4 /dev/other rw",
        "damaged",
    )
    assert find_disk(deep, kernel.proc, kernel.sys).name == "/dev/b"
    assert find_disk(tmp_path, kernel.proc, kernel.sys).name == "/dev/a"


def test_a_later_mount_lies_over_an_earlier_one(kernel: FakeKernel, tmp_path: Path) -> None:
    mounts(
        kernel,
        f"{code(tmp_path)} / / rw - ext4 /dev/below rw",
        f"{code(tmp_path)} / / rw - ext4 /dev/above rw",
    )
    assert find_disk(tmp_path, kernel.proc, kernel.sys).name == "/dev/above"


def test_a_subvolume_has_a_number_of_its_own(kernel: FakeKernel, tmp_path: Path) -> None:
    mounts(kernel, "0:99 / / rw - btrfs /dev/gone rw")
    disk = find_disk(tmp_path, kernel.proc, kernel.sys)
    assert (disk.filesystem, disk.device, disk.rotational) == ("btrfs", "0:99", None)


def test_nothing_is_known_without_mounts(kernel: FakeKernel, tmp_path: Path) -> None:
    disk = find_disk(tmp_path, kernel.proc, kernel.sys)
    assert (disk.filesystem, disk.device) == ("unknown", code(tmp_path))
    assert disk.size > 0


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="nowhere: No such file"):
        find_disk(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "filesystem", "rotational", "kind"),
    [
        ("/dev/sda1", "ext4", True, "rotating disk"),
        ("/dev/sda1", "xfs", False, "solid-state disk"),
        ("/dev/vda", "ext4", True, "virtual disk"),
        ("server:/models", "nfs4", None, "network"),
        ("tmpfs", "tmpfs", None, "memory"),
        ("overlay", "overlay", None, "not a block device"),
    ],
)
def test_kinds(name: str, filesystem: str, rotational: bool | None, kind: str) -> None:
    assert Disk("8:1", name, Path("/"), filesystem, rotational, 1, 1).kind == kind


def test_files_are_opened_where_direct_reads_do_not_work(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"abc")
    fd, _ = open_direct(path)
    os.close(fd)
    fd, direct = open_direct(Path("/proc/meminfo"))  # refuses direct reads
    assert not direct
    assert os.read(fd, 8) == b"MemTotal"
    os.close(fd)
