"""A budget is a promise: a model that is larger runs in a memory group of that size, and gives the same answer."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.weights.synth import synth

MIB = 1 << 20
GROUPS = Path("/sys/fs/cgroup/memory")
PROGRAM = """
import json, sys
from pathlib import Path
import penstock
path, budget, group = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
engine = penstock.Engine(path, memory=budget, streaming="direct", context=1024)
session = engine.session()
session.feed([(7 * n + 3) % 256 for n in range(600)])
tokens = [int(session.feed([n]).argmax()) for n in range(20)]
peak = int((group / "memory.max_usage_in_bytes").read_text())
print(json.dumps({"tokens": tokens, "peak": peak, "stats": engine.stats()["misses"], "total": engine.plan.total}))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory group of the first version that this test may fill."""
    folder = GROUPS / f"penstock-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("memory groups cannot be made here")
    try:
        yield folder
    finally:
        folder.rmdir()


@pytest.mark.parametrize("spare", [0, 60])
def test_in_a_group_of_that_size(tmp_path: Path, group: Path, spare: int) -> None:
    path = tmp_path / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4) * 6, mix="f16", vocab=30_000)
    plain = Engine(path, context=1024)
    budget = plain.plan.smallest + spare * MIB
    whole = plain.plan.dense + plain.plan.experts_total
    assert whole > 150 * MIB > spare * MIB
    session = plain.session()
    session.feed([(7 * n + 3) % 256 for n in range(600)])
    expected = [int(session.feed([n]).argmax()) for n in range(20)]  # type: ignore[union-attr]
    (group / "memory.limit_in_bytes").write_text(str(budget))
    # In the group before the interpreter starts, so that all of it counts.
    enter = f'echo $$ > {group / "cgroup.procs"} && exec "$0" "$@"'
    command = ["sh", "-c", enter, sys.executable, "-c", PROGRAM, str(path), str(budget), str(group)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["tokens"] == expected
    assert found["peak"] <= budget
    assert found["total"] <= budget
    assert found["stats"] > 0
