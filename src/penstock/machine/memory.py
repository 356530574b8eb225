"""How much memory there is for this process: the machine's, and what control groups leave of it."""

import os
from dataclasses import dataclass
from mmap import PAGESIZE
from pathlib import Path
from typing import Final

from penstock.machine import macos
from penstock.machine.groups import find_groups
from penstock.machine.kernel_files import CGROUPS, PROC, counters, number, text

NO_LIMIT: Final = 1 << 62  # the first version of control groups writes "none" as a number beyond this
SMALLEST_MARGIN: Final = 512 << 20


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Bytes that a control group allows and holds.  Its page cache is given back when something else needs room."""

    limit: int
    usage: int
    page_cache: int

    @property
    def room(self) -> int:
        return max(0, self.limit - self.usage + min(self.page_cache, self.usage))


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes.  `available` can be had on this machine without swapping: some of it is `unused`, the rest holds files.
    `groups` are those with a limit.

    >>> Memory(total=16 << 30, available=9 << 30, swap=0).safe_budget() == (9 << 30) - (16 << 30) // 20
    True
    """

    total: int
    available: int
    swap: int
    groups: tuple[GroupMemory, ...] = ()
    unused: int = NO_LIMIT  # where the system does not tell: all that is available

    @property
    def tightest(self) -> GroupMemory | None:
        """The group with the smallest limit."""
        return min(self.groups, key=lambda group: group.limit, default=None)

    @property
    def size(self) -> int:
        """All that this process could ever have."""
        return min([self.total, *(group.limit for group in self.groups)])

    @property
    def room(self) -> int:
        """What this process can have now.  An outer group may be fuller than the one with the smallest limit."""
        return min([self.available, *(group.room for group in self.groups)])

    @property
    def margin(self) -> int:
        """What is better left free, for others and for what a process needs besides."""
        return max(SMALLEST_MARGIN, self.size // 20)

    def safe_budget(self) -> int:
        """Bytes that this process may take now, beyond what it has, without anybody having to swap."""
        return max(0, self.room - self.margin)


def resident_bytes(proc: Path = PROC) -> int | None:
    """What this process has in memory now, pages of mapped files included; None where the kernel does not tell."""
    if macos.HERE:
        return macos.resident_bytes()
    fields = (text(proc / "self" / "statm") or "").split()
    return int(fields[1]) * PAGESIZE if len(fields) > 1 and fields[1].isdecimal() else None


def read_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> Memory:
    """As it is now."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if macos.HERE:
        pages = macos.pages()
        return Memory(total, pages.available if pages else total // 2, macos.swap_bytes())
    fields = _meminfo(proc)
    total = fields.get("MemTotal", total)
    return Memory(
        total=total,
        available=fields.get("MemAvailable", total // 2),
        swap=fields.get("SwapTotal", 0),
        groups=_limited_groups(proc, cgroups),
        unused=fields.get("MemFree", NO_LIMIT),
    )


def _meminfo(proc: Path) -> dict[str, int]:
    """Lines such as "MemTotal:       24684100 kB", in bytes."""
    found = {}
    for line in (text(proc / "meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        size, _, unit = value.strip().partition(" ")
        if size.isdecimal() and unit == "kB":
            found[name] = int(size) << 10
    return found


def _limited_groups(proc: Path, cgroups: Path) -> tuple[GroupMemory, ...]:
    groups = find_groups("memory", proc, cgroups)
    read = _first_version if groups.version == 1 else _second_version
    return tuple(found for folder in groups.folders if (found := read(folder)) is not None)


def _first_version(folder: Path) -> GroupMemory | None:
    limit, usage = number(folder / "memory.limit_in_bytes"), number(folder / "memory.usage_in_bytes")
    if limit is None or usage is None or limit >= NO_LIMIT:
        return None
    held = counters(folder / "memory.stat")  # total_: with all groups inside it, as the usage is
    return GroupMemory(limit, usage, held.get("total_inactive_file", 0) + held.get("total_active_file", 0))


def _second_version(folder: Path) -> GroupMemory | None:
    usage = number(folder / "memory.current")
    # Beyond `high` the kernel slows a group down so much that it is a limit too.  No limit is the word "max".
    limits = [number(folder / name) for name in ("memory.max", "memory.high")]
    limit = min((limit for limit in limits if limit is not None), default=None)
    if limit is None or usage is None:
        return None
    held = counters(folder / "memory.stat")
    return GroupMemory(limit, usage, held.get("inactive_file", 0) + held.get("active_file", 0))
