"""A context that nobody asked for takes little at first, and experts give way to it as it grows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.errors import BudgetError, ContextLengthError
from penstock.storage import plan
from penstock.storage.streamed import StreamedExperts
from penstock.weights.synth import synth

MIB = 1 << 20
RESERVED = 512  # in place of the real one, which would take longer to fill
TOKENS = RESERVED + 1500
PROGRAM = """
import json, sys
from pathlib import Path
import penstock
from penstock.storage import plan
plan.RESERVED = 512
path, budget, group, tokens = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
engine = penstock.Engine(path, memory=budget, streaming="direct", kv_dtype="f32", prefill_chunk=256)
session = engine.session()
session.feed([(7 * n + 3) % 256 for n in range(tokens)], logits="none")
found = {"token": int(session.feed([5]).argmax())}
found["peak"] = int((group / "memory.max_usage_in_bytes").read_text())
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "RESERVED", RESERVED)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("growth") / "m.gguf"
    synth(path, width="tiny", ratios=(4,) * 8, mix="f16")
    return path


def limited(model: Path, experts: float = 0.3, **options: object) -> Engine:
    """With memory for so many of the experts beside all other weights; 0: for not even all of those."""
    plan = Engine(model, load=False, memory=None, context=RESERVED, kv_dtype="f32", prefill_chunk=256).plan
    more = plan.dense + int(experts * plan.experts_total) if experts else 3 * MIB
    options = {"streaming": "direct", "prefill_chunk": 256, "kv_dtype": "f32", **options}
    return Engine(model, memory=plan.smallest + more, **options)  # type: ignore[arg-type]


def test_experts_give_way_and_come_back(model: Path) -> None:
    with limited(model) as engine:
        experts = engine.storage.experts
        assert isinstance(experts, StreamedExperts)
        whole = experts.cache.capacity
        session = engine.session()
        session.feed([1] * RESERVED, logits="none")
        assert experts.cache.capacity == whole
        session.feed([1] * 1500, logits="none")
        beyond = engine.state_bytes(session.position) - engine.plan.state
        assert whole - experts.cache.capacity >= beyond > 0
        assert experts.cache.capacity >= engine.plan.experts_fewest
        del session
        engine.session().feed([1])
        assert experts.cache.capacity == whole


def test_where_experts_are_not_enough_other_weights_give_way(model: Path) -> None:
    with limited(model, experts=0) as engine:
        before = engine.plan
        session = engine.session()
        session.feed([1] * TOKENS, logits="none")
        assert engine.plan.budget == before.budget
        assert engine.plan.chunk == before.chunk
        assert before.most_state is not None
        assert engine.plan.most_state is not None
        assert before.most_state < engine.state_bytes(TOKENS) <= engine.plan.most_state
        assert engine.plan.dense_held < before.dense_held
        assert engine.plan.total <= (before.budget or 0)


def test_the_longest_context_is_the_longest_that_any_plan_has(model: Path) -> None:
    with limited(model, experts=0, load=False) as engine:
        budget, longest = engine.plan.budget, engine.context
    options = {"streaming": "direct", "prefill_chunk": 256, "kv_dtype": "f32", "load": False}
    assert RESERVED < longest < engine.config.context_length
    Engine(model, memory=budget, context=longest, **options)  # type: ignore[arg-type]
    with pytest.raises(BudgetError):
        Engine(model, memory=budget, context=longest + plan.LENGTHS, **options)  # type: ignore[arg-type]


def test_a_given_length_is_set_aside_and_not_exceeded(model: Path) -> None:
    with limited(model, context=256) as engine:
        assert engine.context == 256
        with pytest.raises(ContextLengthError):
            engine.session().feed([1] * 257)


@pytest.fixture(scope="module")
def expected(model: Path) -> int:
    """The token after so many, with all the memory there is."""
    with Engine(model, kv_dtype="f32", memory=None) as engine:
        session = engine.session()
        session.feed([(7 * n + 3) % 256 for n in range(TOKENS)], logits="none")
        return int(session.feed([5]).argmax())  # type: ignore[union-attr]


@pytest.mark.parametrize("experts", [0.3, 0])
def test_the_budget_is_kept_while_it_grows(model: Path, expected: int, group: Path, experts: float) -> None:
    with limited(model, experts, load=False) as engine:
        budget = engine.plan.budget
        assert engine.context > TOKENS
    assert budget is not None
    (group / "memory.limit_in_bytes").write_text(str(budget))
    enter = f'echo $$ > {group / "cgroup.procs"} && exec "$0" "$@"'
    program = [sys.executable, "-c", PROGRAM, str(model), str(budget), str(group), str(TOKENS)]
    done = subprocess.run(
        ["sh", "-c", enter, *program], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["token"] == expected
    assert found["peak"] <= budget
