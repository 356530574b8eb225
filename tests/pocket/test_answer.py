"""Letting a model answer: here a random one, so only the machinery is judged."""

from random import Random

import pytest

import penstock
from penstock.model.deepseek_v4.model import DeepSeekV4
from penstock.weights.synth import synth
from pocket.answer import answers
from pocket.data import problem
from pocket.eval import ROWS, draft_acceptance, measure
from pocket.use import expert_use


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> penstock.Engine:
    path = tmp_path_factory.mktemp("random") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q8_0")
    return penstock.Engine(path)


def test_answers_do_not_depend_on_who_else_is_asked(engine: penstock.Engine) -> None:
    problems = [problem(skill, Random(skill)) for skill in ("arithmetic", "tools", "json")]
    together = answers(engine, problems, max_tokens=12)
    assert together == [answers(engine, [asked], max_tokens=12)[0] for asked in problems]
    assert not any(asked.check(answer) for asked, answer in zip(problems, together, strict=True))


def test_every_row_of_the_table_can_be_measured(engine: penstock.Engine) -> None:
    for row in ROWS:
        asked = row.make(Random(1))
        assert asked.check(asked.reference), row.name
    right, _, tried = measure(engine, ROWS[0], count=2, seed=0)
    assert (right, tried) == (0, 2)


def test_a_model_without_a_draft_block_is_told(engine: penstock.Engine) -> None:
    with pytest.raises(penstock.OptionError, match="no MTP block"):
        draft_acceptance(engine, 1, 0)


def test_expert_use_counts_every_choice(engine: penstock.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pocket.use.PER_SKILL", 1)
    model = engine.runner.model
    assert isinstance(model, DeepSeekV4)
    store = model.layers[0].store
    use = expert_use(engine)
    assert model.layers[0].store is store
    for shares in use.values():
        assert len(shares) == 3
        for layer in shares:
            assert sum(layer) == pytest.approx(1.0, abs=0.01)
