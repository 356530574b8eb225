"""Control groups: the folders whose limits hold for this process, in both versions of the kernel's interface."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from penstock.machine.kernel_files import CGROUPS, PROC, text


class Groups(NamedTuple):
    """A process's own group and the groups around it, innermost first.  A limit of any of them holds."""

    version: int
    folders: tuple[Path, ...]


def find_groups(controller: str, proc: Path = PROC, cgroups: Path = CGROUPS) -> Groups:
    """The groups that rule this process's use of a controller ("memory" or "cpu").

    Where both versions are mounted, each controller belongs to one of them; the first version names its own.
    """
    unified = "/"
    for controllers, path in _memberships(proc):
        if controller in controllers.split(","):
            named = cgroups / controllers
            return Groups(1, _outwards(named if named.is_dir() else cgroups / controller, path))
        if not controllers:
            unified = path
    alone = (cgroups / "cgroup.controllers").exists()
    return Groups(2, _outwards(cgroups if alone else cgroups / "unified", unified))


def _memberships(proc: Path) -> Iterator[tuple[str, str]]:
    """Pairs of controllers and path, from lines such as "4:cpu,cpuacct:/user.slice" and "0::/user.slice"."""
    for line in (text(proc / "self" / "cgroup") or "").splitlines():
        if line.count(":") >= 2:
            _, controllers, path = line.split(":", 2)
            yield controllers, path


def _outwards(mount: Path, path: str) -> tuple[Path, ...]:
    """The group at `path` and its parents up to the mount.

    In a container the path may be the host's while the mount shows only the container's part of the tree, so the
    longest tail of the path that exists is meant.
    """
    parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    while parts and not mount.joinpath(*parts).is_dir():
        parts = parts[1:]
    return tuple(mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
