"""Where the kernel tells about itself, and reading it: a file that is not there is an answer, not an error."""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
SYS: Final = Path("/sys")
CGROUPS: Final = SYS / "fs" / "cgroup"


def text(path: Path) -> str | None:
    """The content without surrounding space; None if this kernel has no such file or refuses to read it."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def number(path: Path) -> int | None:
    """A file that holds one whole number; None for anything else."""
    try:
        return int(text(path) or "")
    except ValueError:
        return None


def counters(path: Path) -> dict[str, int]:
    """Lines of "name value", as in vmstat; what does not look like that is left out."""
    found = {}
    for line in (text(path) or "").splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdecimal():
            found[name] = int(value)
    return found
