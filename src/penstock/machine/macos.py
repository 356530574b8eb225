"""What macOS answers where Linux has files: `sysctl` by name, Mach's counts of pages, and `statfs`.

Like a file that is not there, a call that fails is an answer (None), so everything here can be asked on any system.
"""

import ctypes
import mmap
import struct
import sys
from pathlib import Path
from typing import Final, NamedTuple

HERE: bool = sys.platform == "darwin"  # tests set it, to run on Linux what is meant for macOS

_HOST_VM_INFO64: Final = 4
# vm_statistics64: counts of pages, in the order of <mach/vm_statistics.h>
_PAGES: Final = struct.Struct("=4I9Q2I4Q4IQ")
_TASK_BASIC_INFO: Final = 20
# mach_task_basic_info: bytes of addresses, in memory now and at most; times, policy and suspensions
_TASK: Final = struct.Struct("=3Q6i")
# statfs: sizes and ids, then type, mount point and device in words, as in <sys/mount.h>
_STATFS: Final = struct.Struct("=Ii5Q2i4I16s1024s1024s8I")


class Kernel:
    """The calls themselves, with their answers as bytes."""

    def __init__(self) -> None:
        self._calls = ctypes.CDLL(None) if sys.platform == "darwin" else None
        self._host = self._calls.mach_host_self() if self._calls else 0

    def sysctl(self, name: str) -> bytes | None:
        if self._calls is None:
            return None
        size = ctypes.c_size_t(0)
        if self._calls.sysctlbyname(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)):
            return None
        answer = ctypes.create_string_buffer(size.value)
        if self._calls.sysctlbyname(name.encode(), answer, ctypes.byref(size), None, ctypes.c_size_t(0)):
            return None
        return answer.raw[: size.value]

    def pages(self) -> bytes | None:
        if self._calls is None:
            return None
        words = ctypes.c_uint32(_PAGES.size // 4)
        answer = ctypes.create_string_buffer(_PAGES.size)
        failed = self._calls.host_statistics64(self._host, _HOST_VM_INFO64, answer, ctypes.byref(words))
        return None if failed else answer.raw

    def task(self) -> bytes | None:
        if self._calls is None:
            return None
        words = ctypes.c_uint32(_TASK.size // 4)
        answer = ctypes.create_string_buffer(_TASK.size)
        own = ctypes.c_uint32.in_dll(self._calls, "mach_task_self_")
        failed = self._calls.task_info(own, _TASK_BASIC_INFO, answer, ctypes.byref(words))
        return None if failed else answer.raw

    def statfs(self, path: Path) -> bytes | None:
        if self._calls is None:
            return None
        answer = ctypes.create_string_buffer(_STATFS.size)
        statfs = getattr(self._calls, "statfs$INODE64", None) or self._calls.statfs  # the first on Intel only
        return None if statfs(bytes(path), answer) else answer.raw


KERNEL = Kernel()


def text(name: str) -> str | None:
    """A word that `sysctl NAME` prints."""
    answer = KERNEL.sysctl(name)
    return None if answer is None else answer.rstrip(b"\0").decode(errors="replace")


def number(name: str) -> int | None:
    """A number that it prints; they have four or eight bytes."""
    answer = KERNEL.sysctl(name)
    return None if answer is None or len(answer) not in (4, 8) else int.from_bytes(answer, sys.byteorder)


def swap_bytes() -> int:
    answer = KERNEL.sysctl("vm.swapusage")  # its first number is the total
    return 0 if answer is None or len(answer) < 8 else int.from_bytes(answer[:8], sys.byteorder)


class Pages(NamedTuple):
    """available: bytes that are free, or hold files, or what programs have declared dispensable; the others count
    pages since the start of the machine."""

    available: int
    page_ins: int
    swap_ins: int


def pages() -> Pages | None:
    answer = KERNEL.pages()
    if answer is None:
        return None
    found = _PAGES.unpack(answer)
    free, purgeable, read_ahead, files = found[0], found[13], found[14], found[21]
    available = free - read_ahead + purgeable + files  # what was read ahead is free, and a file too
    return Pages(available * mmap.PAGESIZE, page_ins=found[6], swap_ins=found[17])


def resident_bytes() -> int | None:
    """What this process has in memory now."""
    answer = KERNEL.task()
    return None if answer is None else int(_TASK.unpack(answer)[1])


class FileSystem(NamedTuple):
    kind: str
    mount: Path
    source: str


def file_system(path: Path) -> FileSystem | None:
    answer = KERNEL.statfs(path)
    if answer is None:
        return None
    kind, mount, source = (
        word.split(b"\0")[0].decode(errors="replace") for word in _STATFS.unpack(answer)[13:16]
    )
    return FileSystem(kind, Path(mount), source)
