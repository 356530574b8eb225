"""Memory groups: a limit is a limit, and nothing is left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import cgroup
from benchmarks.cgroup import V2, MemoryGroup, NoMemoryGroups, Parent, find_parent
from penstock.machine.groups import Groups

LIMIT = 96 << 20


@pytest.fixture
def _groups() -> None:
    try:
        find_parent()
    except NoMemoryGroups as error:
        pytest.skip(str(error))


def take(group: MemoryGroup, mib: int) -> int:
    """Exit status of a process that takes so much memory inside the group."""
    command = group.enter([sys.executable, "-c", f"bytearray({mib} << 20)"])
    return subprocess.run(command, check=False).returncode


@pytest.mark.usefixtures("_groups")
def test_within_the_limit_all_is_well_and_counted() -> None:
    with MemoryGroup(LIMIT) as group:
        assert take(group, 48) == 0
        assert 48 << 20 <= group.peak <= LIMIT
        assert group.killed == 0


@pytest.mark.usefixtures("_groups")
def test_beyond_the_limit_the_process_is_killed() -> None:
    with MemoryGroup(LIMIT) as group:
        assert take(group, 128) == -9
        assert group.peak <= LIMIT
        assert group.killed == 1


@pytest.mark.usefixtures("_groups")
def test_without_a_limit_it_only_counts() -> None:
    with MemoryGroup() as group:
        assert take(group, 128) == 0
        assert group.peak >= 128 << 20


@pytest.mark.usefixtures("_groups")
def test_it_is_gone_afterwards() -> None:
    with MemoryGroup(LIMIT) as group:
        assert group.folder.is_dir()
    assert not group.folder.exists()


def test_the_second_version_needs_the_controller_handed_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "user.slice" / "terminal"
    own.mkdir(parents=True)
    monkeypatch.setattr(cgroup, "find_groups", lambda _: Groups(2, (own, own.parent, tmp_path)))
    with pytest.raises(NoMemoryGroups, match="does not hand memory down"):
        find_parent()
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    assert find_parent() == Parent(own.parent, V2)
