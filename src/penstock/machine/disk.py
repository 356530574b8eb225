"""Where a path lies: the mount, its file system, and the block device behind it."""

import errno
import fcntl
import mmap
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import ReadError
from penstock.machine import macos
from penstock.machine.kernel_files import PROC, SYS, number, text

IN_MEMORY: Final = ("tmpfs", "ramfs")
OVER_A_NETWORK: Final = (
    *("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "fuse.sshfs"),
    *("smbfs", "afpfs", "webdav"),  # as macOS calls them
)
SECTOR: Final = 512  # the unit of sizes in /sys, whatever the device's own is


@dataclass(frozen=True, slots=True)
class Disk:
    """device: the kernel's number, "259:2"; name: what is mounted, such as /dev/nvme0n1p2 or server:/models;
    rotational: None where no block device is behind it; size and free: bytes."""

    device: str
    name: str
    mount: Path
    filesystem: str
    rotational: bool | None
    size: int
    free: int

    @property
    def kind(self) -> str:
        """In words.  Virtual disks call themselves rotational, whatever they lie on."""
        name = self.name.removeprefix("/dev/")
        if self.filesystem in IN_MEMORY:
            return "memory"
        if self.filesystem in OVER_A_NETWORK:
            return "network"
        if name.startswith(("vd", "xvd")):
            return "virtual disk"
        if self.rotational is None:
            return "not a block device"
        if self.rotational:
            return "rotating disk"
        return "NVMe" if name.startswith("nvme") else "solid-state disk"


class _Mount(NamedTuple):
    device: str
    point: Path
    filesystem: str
    source: str


def find_disk(path: Path, proc: Path = PROC, sys: Path = SYS) -> Disk:
    """The disk that an existing file or folder lies on."""
    try:
        path = path.resolve(strict=True)
        own = _device(path.stat().st_dev)
        space = os.statvfs(path)
    except OSError as error:
        raise ReadError(f"{path}: {error.strerror}") from None
    # Of the mounts above the path the innermost counts.  The device decides where one hides another; a btrfs
    # subvolume has a number that no mount shows, so it is not required to be the same.
    mounts = _mounts(proc) if not macos.HERE else _apple_mounts(path, own)
    found = max(
        (mount for mount in mounts if path.is_relative_to(mount.point)),
        key=lambda mount: (mount.device == own, len(mount.point.parts)),
        default=_Mount(own, Path("/"), "unknown", "unknown"),
    )
    device = _block_device(found)
    block = sys / "dev" / "block" / device
    return Disk(
        device=device,
        name=found.source,
        mount=found.point,
        filesystem=found.filesystem,
        rotational=_rotational(block) if not macos.HERE else _apple_rotational(found),
        size=(number(block / "size") or 0) * SECTOR or space.f_blocks * space.f_frsize,
        free=space.f_bavail * space.f_frsize,
    )


def open_direct(path: Path) -> tuple[int, bool]:
    """A descriptor for reading, and whether reads through it go past the page cache.

    Direct reads need offsets, lengths and buffers in multiples of a page.  Some file systems refuse them when the
    file is opened and some only when it is read, so one page is tried.  Through the cache, nothing is read ahead.
    """
    if macos.HERE:
        fd = os.open(path, os.O_RDONLY)
        return fd, _uncached(fd)
    flags = getattr(os, "O_DIRECT", 0)
    try:
        fd = os.open(path, os.O_RDONLY | flags)
    except OSError as error:
        if error.errno != errno.EINVAL or not flags:
            raise
        return _open_cached(path), False
    try:
        os.preadv(fd, [mmap.mmap(-1, mmap.PAGESIZE)], 0)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
        return _open_cached(path), False
    return fd, bool(flags)


def forget(fd: int, offset: int, nbytes: int) -> None:
    """Drops a part of a file from the page cache where the system can be asked to."""
    _advise(fd, offset, nbytes, "POSIX_FADV_DONTNEED")


def create_direct(path: Path, *, keep: bool = False) -> int:
    """A descriptor for writing a file, past the page cache where the file system can.  keep: what is in it stays.

    Direct writes need offsets, lengths and buffers in multiples of a page.
    """
    flags = os.O_WRONLY | os.O_CREAT | (0 if keep else os.O_TRUNC)
    if macos.HERE:
        fd = os.open(path, flags, 0o666)
        _uncached(fd)
        return fd
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, flags, 0o666)


def sync_data(fd: int) -> None:
    """What was written to a file will be there after a power failure."""
    if not macos.HERE:
        getattr(os, "fdatasync", os.fsync)(fd)
        return
    try:  # its `fsync` leaves bytes in the disk's own memory
        fcntl.fcntl(fd, getattr(fcntl, "F_FULLFSYNC", 51))
    except OSError:
        os.fsync(fd)


def _open_cached(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    _advise(fd, 0, 0, "POSIX_FADV_RANDOM")
    return fd


def _advise(fd: int, offset: int, nbytes: int, advice: str) -> None:
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, nbytes, getattr(os, advice))


def _uncached(fd: int) -> bool:
    """What macOS has in place of O_DIRECT: a property of the descriptor.  Whether it could be had."""
    try:
        fcntl.fcntl(fd, getattr(fcntl, "F_NOCACHE", 48), 1)
    except OSError:
        return False
    return True


def _apple_mounts(path: Path, device: str) -> list[_Mount]:
    found = macos.file_system(path)
    return [_Mount(device, found.mount, found.kind, found.source)] if found else []


def _apple_rotational(mount: _Mount) -> bool | None:
    """macOS does not say it in a word; Macs with Apple silicon have had nothing but solid-state disks inside."""
    return False if mount.source.startswith("/dev/") else None


def _mounts(proc: Path) -> list[_Mount]:
    """Later ones first, because they lie over earlier ones at the same place.

    A line: "27 1 254:0 /root /point rw,relatime shared:1 - ext4 /dev/vda rw"
    """
    found = []
    for line in (text(proc / "self" / "mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        where, what = before.split(), after.split()
        if len(where) >= 6 and len(what) >= 2:
            found.append(_Mount(where[2], Path(_unescape(where[4])), what[0], _unescape(what[1])))
    return found[::-1]


def _unescape(word: str) -> str:
    r""" "a\040b" → "a b" """
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), word)


def _device(code: int) -> str:
    return f"{os.major(code)}:{os.minor(code)}"


def _block_device(mount: _Mount) -> str:
    """The number of the device itself: btrfs and others mount under a made-up one."""
    if mount.device.startswith("0:") and mount.source.startswith("/"):
        try:
            status = os.stat(mount.source)
        except OSError:
            return mount.device
        if stat.S_ISBLK(status.st_mode):
            return _device(status.st_rdev)
    return mount.device


def _rotational(device: Path) -> bool | None:
    """A partition has no queue of its own; its disk, the folder around it, has."""
    folder = device.resolve()
    for queue in (folder / "queue", folder.parent / "queue"):
        if (found := number(queue / "rotational")) is not None:
            return bool(found)
    return None
