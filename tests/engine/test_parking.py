"""Weights that leave memory really leave it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.errors import OptionError
from penstock.pocket import pocket_path
from penstock.weights.synth import synth

WATCH = """
import sys
from penstock.engine.engine import Engine

def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

engine = Engine(sys.argv[1], streaming=sys.argv[2], context=512, threads=1, load=False)
engine.session().feed([1])
engine.park()
empty = resident()
for _ in range(3):
    engine.load()
    engine.session().feed(list(range(64)))
    loaded = resident()
    engine.park()
    print(loaded - empty, resident() - empty)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("parking") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128), mix="q8_0")
    return path


def test_the_same_answer_afterwards(model: Path) -> None:
    engine = Engine(model, context=512)
    session = engine.session()
    session.feed(list(range(40)), logits="none")
    engine.park()
    assert engine.parked
    resumed = session.feed([3])  # brings the weights back
    assert engine.stats()["mode"] != "parked"
    straight = Engine(model, context=512).session().feed([*range(40), 3])
    assert resumed is not None
    assert straight is not None
    assert np.array_equal(resumed, straight)
    engine.load()  # nothing to do


def test_loading_is_told(model: Path) -> None:
    told: list[tuple[int, int]] = []
    engine = Engine(model, context=512, streaming="resident", load=False)
    engine.load(lambda done, total: told.append((done, total)))
    assert told
    assert told[-1][0] == told[-1][1] > 0
    assert engine.loading is None


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.parametrize("mode", ["resident", "mmap"])
def test_memory_drops(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128) * 16, mix="f16")
    size = path.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", WATCH, str(path), mode], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        loaded, parked = map(int, line.split())
        assert loaded > 0.5 * size
        assert parked < 0.1 * size


def test_without_the_draft_block(tmp_path: Path) -> None:
    """The same answers, and nothing is kept for it."""
    whole, plain = Engine(pocket_path(), context=512), Engine(pocket_path(), context=512, draft="off")
    assert whole.fingerprint == plain.fingerprint
    prompt = list(range(300, 360))
    sessions = whole.session(), plain.session()
    logits = [session.feed(prompt) for session in sessions]
    assert logits[0] is not None
    assert logits[1] is not None
    assert np.array_equal(logits[0], logits[1])
    assert plain.state_bytes(512) < whole.state_bytes(512)
    whole.mtp_logits(sessions[0], 5)
    with pytest.raises(OptionError, match="draft"):
        plain.mtp_logits(sessions[1], 5)
    sessions[0].save(tmp_path / "s")  # what was kept for it does no harm
    assert np.array_equal(plain.load_session(tmp_path / "s").feed([7]), sessions[1].feed([7]))  # type: ignore[arg-type]
