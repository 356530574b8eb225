"""The model in the package: what it is, what it can do, and that another engine finds the same answers in it."""

from random import Random

import numpy as np
import pytest

import penstock
from penstock.chat.deepseek_v4.render import render
from penstock.chat.messages import Thinking
from penstock.engine.sampling import Sampling
from penstock.pocket import pocket_path
from penstock.weights.config import AttentionKind
from pocket.answer import answers
from pocket.config import PocketConfig
from pocket.data import problem
from pocket.eval import draft_acceptance, two_digit_addition
from pocket.use import expert_use
from tests.oracles import llamacpp


@pytest.fixture(scope="module")
def engine() -> penstock.Engine:
    return penstock.Engine(pocket_path())


def test_it_is_small_and_has_everything(engine: penstock.Engine) -> None:
    assert pocket_path().stat().st_size <= 16_000_000
    config = engine.config
    assert config.layer_count >= 8
    assert {layer.attention for layer in config.layers} == set(AttentionKind)
    assert [layer.hashed for layer in config.layers] == [True] * 2 + [False] * 6
    assert config.experts >= 16
    assert config.experts_used >= 2
    assert config.context_length == PocketConfig().context == 32_768
    assert config.index_topk < 4096 // 4  # the indexer has to choose
    assert engine.checkpoint.has_mtp
    assert PocketConfig().vocab == len(engine.session().feed([0], logits="last"))  # type: ignore[arg-type]


@pytest.mark.parametrize("thinking", [False, True])
def test_it_adds(engine: penstock.Engine, thinking: bool) -> None:
    make, rng = two_digit_addition(thinking), Random(f"adds/{thinking}")
    problems = [make(rng) for _ in range(10)]
    found = answers(engine, problems)
    assert sum(asked.check(answer) for asked, answer in zip(problems, found, strict=True)) >= 9
    assert all(bool(answer.reasoning) == thinking for answer in found)


@pytest.mark.parametrize(
    ("skill", "length", "count", "least"),
    [("lookup", 400, 10, 9), ("lookup", 2000, 2, 2), ("tools", None, 10, 8), ("json", None, 8, 7)],
)
def test_it_can_do_what_it_was_taught(
    engine: penstock.Engine, skill: str, length: int | None, count: int, least: int
) -> None:
    rng = Random(f"shipped/{skill}")
    problems = [problem(skill, rng, length=length) for _ in range(count)]
    found = answers(engine, problems, max_tokens=200)
    assert sum(asked.check(answer) for asked, answer in zip(problems, found, strict=True)) >= least


def test_its_draft_block_guesses_well(engine: penstock.Engine) -> None:
    for agreed, made in draft_acceptance(engine, 2, seed=5):  # four in a row
        assert agreed / made > 0.5


def test_no_expert_is_dead(engine: penstock.Engine) -> None:
    use = np.mean(list(expert_use(engine).values()), axis=0)  # [layers, experts]
    assert use.min() > 0.1 / use.shape[1]


@pytest.mark.parametrize("skill", ["arithmetic", "facts", "json", "tools", "copy"])
def test_llamacpp_gives_the_same_answers(engine: penstock.Engine, skill: str) -> None:
    asked = problem(skill, Random(f"both/{skill}"), thinking=Thinking.OFF)
    prompt = render(asked.conversation).ids(engine.tokenizer)
    ours = [step.token for step in engine.generate(prompt, 24, Sampling(temperature=0))]
    assert llamacpp.generate(pocket_path(), prompt, len(ours)) == ours
