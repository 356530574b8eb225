"""Among enemies, in a memory group of its budget: the server lives, and honest streams are what they always are."""

import pytest

from benchmarks import hostile
from benchmarks.cgroup import NoMemoryGroups, find_parent


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["280MiB", "400MiB"])
def test_a_siege(memory: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        find_parent()
    except NoMemoryGroups as error:
        pytest.skip(str(error))
    assert hostile.main(["--seconds", "8", "--memory", memory]) == 0, capsys.readouterr().out
