"""Memory control groups: a process that gets so many bytes and not one more, its page cache included.

Both kernels' interfaces: version 1 (a hierarchy per controller) and version 2 (one for all).
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from mmap import PAGESIZE
from pathlib import Path
from typing import Final, NamedTuple

from penstock.machine.groups import find_groups
from penstock.machine.kernel_files import counters, number, text

REMOVAL_S: Final = 10.0  # the kernel needs a moment to let go of a group whose process has just ended
_NUMBERS: Final = count()


class NoMemoryGroups(RuntimeError):
    """This process may not make memory control groups here."""


class Interface(NamedTuple):
    """What the files of a version are called, and with a colon, which of a file's "name number" lines is meant."""

    limit: str
    swap: str
    peak: str
    at_limit: tuple[str, ...]
    killed: str


V1: Final = Interface(
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    ("memory.failcnt", "memory.memsw.failcnt"),  # of two limits that are equal only one is counted as met
    "memory.oom_control:oom_kill",
)
V2: Final = Interface(
    "memory.max",
    "memory.swap.max",
    "memory.peak",
    ("memory.events:max",),
    "memory.events:oom_kill",
)


class Parent(NamedTuple):
    """A group that may be given children."""

    folder: Path
    interface: Interface


def find_parent() -> Parent:
    """Where groups can be made; raises NoMemoryGroups with the reason.

    Version 1: the controller's root.  Version 2: the nearest group around us that hands the controller down.
    """
    version, around = find_groups("memory")
    interface, folder = V1, around[-1]
    if version == 2:
        handing = (
            each for each in around if "memory" in (text(each / "cgroup.subtree_control") or "").split()
        )
        interface, folder = V2, next(handing, around[-1] / "cgroup.subtree_control")
    if not folder.is_dir():
        raise NoMemoryGroups(f"no memory control group can be made: {folder} does not hand memory down")
    if not os.access(folder, os.W_OK):
        raise NoMemoryGroups(f"no memory control group can be made: {folder} is not writable")
    return Parent(folder, interface)


class MemoryGroup:
    """A new control group, gone at the end.  Without a limit it only counts.  Never swaps.

    >>> with MemoryGroup(3 << 30) as group:                               # doctest: +SKIP
    ...     subprocess.run(group.enter(["python", "-m", "something"]))
    ...     print(group.peak)
    """

    def __init__(self, limit: int | None = None):
        parent, self.interface = find_parent()
        self.limit = limit
        self.folder = parent / f"penstock-bench-{os.getpid()}-{next(_NUMBERS)}"
        try:
            self.folder.mkdir()
            if limit is not None:
                self._set_limit(limit)
        except OSError as error:
            self.remove()
            raise NoMemoryGroups(f"{self.folder}: {error.strerror or error}") from None

    def _set_limit(self, limit: int) -> None:
        (self.folder / self.interface.limit).write_text(str(limit))
        swap = self.folder / self.interface.swap  # absent where the kernel does not count swap
        if swap.exists():
            # Version 1 limits memory and swap together, version 2 swap alone.
            swap.write_text(str(limit if self.interface is V1 else 0))

    def enter(self, command: Sequence[str]) -> list[str]:
        """The same command, in this group from its first instruction on, under the process id of what is started."""
        join = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", join, str(self.folder / "cgroup.procs"), *command]

    @property
    def peak(self) -> int:
        """Most bytes ever in use at once: private memory, page cache and the kernel's own for it."""
        return int((self.folder / self.interface.peak).read_text())

    @property
    def at_limit(self) -> int:
        """How often the limit was met.  Some kernels offer version 1's counters but leave them at 0."""
        return sum(self._number(place) for place in self.interface.at_limit)

    @property
    def refaults(self) -> int:
        """Bytes of files that were pushed out of memory for lack of room and soon needed again."""
        return self._number("memory.stat:workingset_refault_file") * PAGESIZE

    @property
    def killed(self) -> int:
        """Processes that were killed because nothing could be taken away."""
        return self._number(self.interface.killed)

    def _number(self, place: str) -> int:
        file, _, name = place.partition(":")
        return counters(self.folder / file).get(name, 0) if name else number(self.folder / file) or 0

    def remove(self) -> None:
        deadline = time.monotonic() + REMOVAL_S
        while self.folder.exists():
            with suppress(OSError):
                self.folder.rmdir()
                return
            if time.monotonic() > deadline:
                return  # a process is still inside; it keeps the group, and neither harms the next one
            time.sleep(0.05)

    def __enter__(self) -> "MemoryGroup":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()
