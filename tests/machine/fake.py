"""Made-up kernel files, so that every kind of machine can be met on one."""

from collections.abc import Mapping
from pathlib import Path

import pytest


class FakeKernel:
    """Folders that stand for /proc, /sys and /sys/fs/cgroup."""

    def __init__(self, root: Path):
        self.proc, self.sys = root / "proc", root / "sys"
        self.cgroups = self.sys / "fs" / "cgroup"
        self.cgroups.mkdir(parents=True)
        self.write(
            self.proc, {"meminfo": "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nSwapTotal: 1024 kB\n"}
        )

    def write(self, folder: Path, files: Mapping[str, object]) -> Path:
        for name, content in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{content}\n")
        return folder

    def belong(self, *lines: str) -> None:
        """The groups of this process."""
        self.write(self.proc, {"self/cgroup": "\n".join(lines)})

    def unified(self, group: str = "", **files: object) -> Path:
        """A group of the second version, with files such as memory_max."""
        self.write(self.cgroups, {"cgroup.controllers": "cpu memory"})
        folder = self.cgroups / group
        return self.write(folder, {name.replace("_", ".", 1): content for name, content in files.items()})


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path)
