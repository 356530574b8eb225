"""What is learned of a model's use: private, bounded, fading, and never a reason to fail."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.storage import usage
from penstock.storage.usage import REMEMBERED, Usage, learn_usage, recall_usage, usage_path
from penstock.weights.synth import synth

MIB = 1 << 20


def seen(*counts: list[float], guesses: float = 0.0, right: float = 0.0) -> Usage:
    return Usage(np.array(counts, np.float32), guesses, right)


def test_runs_add_up() -> None:
    assert recall_usage("m", 2, 2) is None
    learn_usage("m", seen([1, 0], [0, 2], guesses=4, right=3))
    learn_usage("m", seen([1, 1], [0, 0]))
    found = recall_usage("m", 2, 2)
    assert found is not None
    assert found.counts.tolist() == [[2, 1], [0, 2]]
    assert (found.guesses, found.right) == (4, 3)
    assert found.favourites()[0] == 0
    assert recall_usage("m", 2, 3) is None  # another shape is another model


def test_old_uses_fade() -> None:
    before = seen([REMEMBERED, 0.0])
    after = before.after(seen([0.0, REMEMBERED / 4]))
    assert float(after.counts.sum()) == pytest.approx(REMEMBERED)
    assert after.counts[0].tolist() == pytest.approx([0.75 * REMEMBERED, 0.25 * REMEMBERED])


@pytest.mark.parametrize(
    ("answers", "repeated"),
    [([[900, 300, 0, 0]], 1.0), ([[300, 300, 300, 300]], 0.0), ([[500, 400, 150, 150]], 0.5)],
)
def test_what_was_seen_is_tried_on_answers(answers: list[list[int]], repeated: float) -> None:
    """All uses before were of the first half of the experts."""
    before = np.array([[6e5, 4e5, 0, 0]], np.float32)
    learn_usage("m", Usage(before).tried(before, np.array(answers)))
    found = recall_usage("m", 1, 4)
    assert found is not None
    assert found.repeated == pytest.approx(repeated, abs=1e-4)
    half = float(found.answer_weights()[0, :2].sum())
    assert half == pytest.approx(0.5 + 0.5 * repeated, abs=1e-4)
    assert seen([1, 0]).repeated == usage.UNTRIED


def test_only_the_user_can_read_it_and_there_are_not_many() -> None:
    for number in range(usage.MOST_FILES + 3):
        learn_usage(f"m{number}", seen([1, 2]))
    files = list(usage_path("m").parent.iterdir())
    assert len(files) == usage.MOST_FILES
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert files[0].parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "damage", [b"", b"PSUSAGE2", b"x" * 24, b"PSUSAGE2" + np.full(7, np.nan, "<f4").tobytes()]
)
def test_a_damaged_file_is_as_good_as_none(damage: bytes) -> None:
    learn_usage("m", seen([1, 2]))
    usage_path("m").write_bytes(damage)
    assert recall_usage("m", 1, 2) is None
    learn_usage("m", seen([1, 2]))
    assert recall_usage("m", 1, 2) is not None


def test_a_folder_that_refuses_is_no_reason_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    learn_usage("m", seen([1, 2]))
    assert recall_usage("m", 1, 2) is None


def test_runs_at_the_same_time_leave_a_whole_file() -> None:
    program = (
        "import numpy as np\n"
        "from penstock.storage.usage import Usage, learn_usage\n"
        "for _ in range(50): learn_usage('m', Usage(np.ones((4, 64), np.float32)))"
    )
    children = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    while any(child.poll() is None for child in children):
        there = usage_path("m").exists()
        assert recall_usage("m", 4, 64) is not None or not there
    assert [child.returncode for child in children] == [0, 0, 0]
    found = recall_usage("m", 4, 64)
    assert found is not None
    assert 50 <= float(found.counts[0, 0]) <= 150
    assert not list(usage_path("m").parent.glob("*.part"))


# ── the engine ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("usage") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), mix="f16", skew=2.0)
    return path


def streaming(model: Path, **options: object) -> Engine:
    least = Engine(model, load=False, memory=None, context=512).plan
    budget = least.smallest + least.dense + least.experts_total // 3
    return Engine(model, memory=budget, streaming="direct", context=512, **options)  # type: ignore[arg-type]


def answers(engine: Engine) -> list[int]:
    session = engine.session()
    session.feed([(7 * n + 3) % 256 for n in range(300)])
    return [int(session.feed([n]).argmax()) for n in range(20)]  # type: ignore[union-attr]


def test_the_next_run_begins_with_what_was_used_most(model: Path) -> None:
    with streaming(model) as engine:
        expected = answers(engine)
    with streaming(model) as engine:
        first = engine.stats()
        assert first["cached"] > 0
        session = engine.session()
        session.feed([5])
        assert engine.stats()["hits"] > 0  # of the very first token
        assert answers(engine) == expected
    fingerprint = engine.checkpoint.fingerprint()
    found = recall_usage(fingerprint, engine.config.layer_count, engine.config.experts)
    assert found is not None
    assert float(found.counts.sum()) == (2 * 320 + 1) * engine.config.layer_count * engine.config.experts_used


def test_it_can_be_left_off(model: Path, tmp_path: Path) -> None:
    with streaming(model, learn="off") as engine:
        answers(engine)
    assert not usage_path("m").parent.exists()
    with streaming(model) as engine:
        answers(engine)
    with streaming(model, learn="off") as engine:
        assert engine.stats()["cached"] == 0
    with streaming(model, trace=tmp_path / "trace") as engine:  # a replay begins with nothing
        assert engine.stats()["cached"] == 0


def test_an_engine_that_is_forgotten_has_learned_too(model: Path) -> None:
    engine = streaming(model)
    answers(engine)
    fingerprint, shape = engine.checkpoint.fingerprint(), (engine.config.layer_count, engine.config.experts)
    engine.park()
    assert recall_usage(fingerprint, *shape) is not None


def test_prompts_are_told_from_answers(model: Path) -> None:
    with streaming(model) as engine:
        answers(engine)
    found = recall_usage(engine.checkpoint.fingerprint(), engine.config.layer_count, engine.config.experts)
    assert found is not None
    assert found.answers == 20 * engine.config.layer_count * engine.config.experts_used
    assert found.answers / 2 < found.foretold <= found.answers
    assert found.found > found.answers / 2  # of a model that uses some more than others
