"""A budget is a promise: a model that is larger runs in a memory group of that size, and gives the same answer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.engine.engine import Engine
from penstock.weights.synth import synth

MIB = 1 << 20
PROGRAM = """
import json, sys
from pathlib import Path
from typing import NamedTuple
import penstock
path, budget, group = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
engine = penstock.Engine(path, memory=budget, streaming="direct", context=1024)
session = engine.session()
session.feed([(7 * n + 3) % 256 for n in range(600)])
tokens = [int(session.feed([n]).argmax()) for n in range(20)]
peak = int((group / "memory.max_usage_in_bytes").read_text())
print(json.dumps({"tokens": tokens, "peak": peak, "stats": engine.stats()["misses"], "total": engine.plan.total}))
"""


class Answer(NamedTuple):
    """Of a model that has all memory it wants."""

    model: Path
    tokens: list[int]
    smallest: int  # budget


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    path: Path = tmp_path_factory.mktemp("budget") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4) * 6, mix="f16", vocab=30_000)
    with Engine(path, context=1024) as engine:
        assert engine.plan.dense + engine.plan.experts_total > 150 * MIB
        session = engine.session()
        session.feed([(7 * n + 3) % 256 for n in range(600)])
        tokens = [int(session.feed([n]).argmax()) for n in range(20)]  # type: ignore[union-attr]
        return Answer(path, tokens, engine.plan.smallest)


@pytest.mark.parametrize("spare", [0, 60])
def test_in_a_group_of_that_size(plain: Answer, group: Path, spare: int) -> None:
    path, expected, smallest = plain
    budget = smallest + spare * MIB
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
