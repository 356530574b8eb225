"""Drafts where steps begin before their tokens are known, as on a device: neither is in the other's way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.forced_drafts import ForcedDrafter, forced
from penstock.engine import speculation
from penstock.engine.drafters import Draft
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.planning import plan_engine
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.session import Session
from penstock.engine.speculation import Speculation, Speculator
from penstock.engine.step_watch import Spent
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from tests.drafting import force_drafts
from tests.engine.clients import Client, alone, finish, prompt
from tests.engine.elsewhere import Steps
from tests.storage.tiers.double import Double

DRAWN = (
    {"temperature": 0},
    {"temperature": 1, "top_p": 0.9, "seed": 3},
    {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    {"temperature": 1, "seed": 5, "logit_bias": {7: 3.0}},
    {"temperature": 1, "seed": 7, "top_logprobs": 2},
)
GREEDY = Sampling(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def plain(every_attention: Path) -> Engine:
    return Engine(every_attention, context=512, prefill_chunk=32, draft="off")


@pytest.fixture
def engine(every_attention: Path) -> Engine:
    return Engine(every_attention, context=512, prefill_chunk=32, draft="ngram")


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many drafts as there are."""
    force_drafts(monkeypatch)


def said(engine: Engine, sampling: Sampling, session: Session | None = None) -> list[Any]:
    return list(engine.generate(prompt(1, 20), 60, sampling, session))


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize("right", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("chosen", DRAWN, ids=str)
def test_text_and_session_are_the_same(
    engine: Engine, plain: Engine, steps: Steps, chosen: dict[str, Any], right: float
) -> None:
    sampling, sessions = Sampling(ignore_eos=True, **chosen), (plain.session(), engine.session())
    wanted = said(plain, sampling, sessions[0])
    tokens = [step.token for step in wanted]
    with forced([*prompt(1, 20), *tokens], right):
        found = said(engine, sampling, sessions[1])
    assert [step.token for step in found] == tokens
    assert [step.logprob for step in found] == pytest.approx([step.logprob for step in wanted], abs=1e-6)
    theirs, ours = (session.state.tensors() for session in sessions)
    for name, rows in theirs.items():
        np.testing.assert_array_equal(rows, ours[name])
    if right == 1.0:
        assert steps.ran < 60 / 4


def test_steps_begin_early_where_nobody_expects_drafts(engine: Engine, steps: Steps) -> None:
    """Every token is new, so that nothing repeats itself."""
    bias = dict.fromkeys(range(20), -100.0)
    unlike = Sampling(temperature=0, ignore_eos=True, presence_penalty=1000, logit_bias=bias)
    list(engine.generate(list(range(20)), 40, unlike))
    assert steps.ran == 40
    assert steps.ahead == 39


class Stretches(ForcedDrafter):
    """Has something to say for ten tokens of twenty."""

    def propose(self, _session: Any, _token: int, most: int, _least: float) -> list[Draft]:
        return super().propose(_session, _token, most, _least) if self.said // 10 % 2 else []


@pytest.mark.usefixtures("deep")
def test_no_step_is_computed_in_vain(
    engine: Engine, plain: Engine, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts come and go: a step that begins early is always the one that follows."""
    tokens = [step.token for step in said(plain, GREEDY)]
    text = [*prompt(1, 20), *tokens]
    monkeypatch.setattr(speculation, "NgramDrafter", lambda: Stretches(text, 0.8))
    assert [step.token for step in said(engine, GREEDY)] == tokens
    accepted = sum(engine.stats()["draft"]["accepted"]["ngram"])
    assert steps.ran == 60 - accepted
    assert accepted > 15
    assert steps.ahead > 15


@pytest.mark.usefixtures("deep")
def test_requests_together_get_the_answers_they_get_alone(
    engine: Engine, plain: Engine, steps: Steps
) -> None:
    clients = [
        Client(
            prompt(n % 2, 30) * 2, 20 + 5 * n, temperature=n % 2, seed=n, repetition_penalty=1 + 0.1 * (n > 3)
        )
        for n in range(6)
    ]
    scheduler = Scheduler(engine, parallel=4)
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)
    for client in clients:
        assert client.tokens == alone(plain, client)
    assert steps.ahead > 0
    assert engine.stats()["draft"]["steps_with_drafts"] > 0


def costs_of(told: Iterator[tuple[int, float, bool]]) -> Speculation:
    shared = Speculation(["ngram"], fresh=1)
    for rows, seconds, begun in told:
        shared.told(1, rows, 1, Spent(seconds), begun)
    return shared


def test_what_is_recorded_first_says_nothing_of_costs() -> None:
    shared = costs_of(
        iter([(1, 9.0, True), (1, 9.0, True), (1, 1.0, True), (4, 50.0, False), (4, 90.0, False)])
    )
    assert shared.costs.at(1) == 1.0
    assert shared.costs.at(4) < 3.0
    shared.told(1, 4, 1, Spent(2.0))
    assert shared.costs.at(4) == 2.0


def test_a_plain_step_costs_what_it_costs_when_it_begins_early() -> None:
    early, late = (1, 1.0, True), (1, 1.5, False)
    assert costs_of(iter([early] * 3 + [late] * 20)).costs.at(1) == 1.0
    assert costs_of(iter([late] * 5)).costs.at(1) == 1.5  # where none does


def test_an_answer_that_rests_lets_steps_begin_early(engine: Engine) -> None:
    assert engine.speculation is not None
    speculator: Speculator = engine.speculation.begin()
    session = engine.session()
    session.feed(prompt(5, 30))
    for token in range(100, 150):
        speculator.propose(session, token, 1)
        assert not speculator.eager
        session.feed([token])


# ── a DSpark module ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def with_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("module") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), mix="f16", dspark=3)
    return path


@pytest.mark.parametrize("always", [True, False], ids=["always", "as the gate decides"])
@pytest.mark.parametrize("chosen", DRAWN, ids=str)
def test_a_module_follows_steps_that_begin_early(
    with_module: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any], always: bool
) -> None:
    """Steps that come to nothing among them: its windows are those of a session that guessed nothing."""
    if always:
        force_drafts(monkeypatch)
    plain, drafting = (
        Engine(with_module, context=512, prefill_chunk=32, draft=draft) for draft in ("off", "auto")
    )
    assert drafting.drafters == ("ngram", "dspark")
    steps, sampling = Steps(drafting), Sampling(ignore_eos=True, **chosen)
    sessions = plain.session(), drafting.session()
    tokens = [step.token for step in said(plain, sampling, sessions[0])]
    assert [step.token for step in said(drafting, sampling, sessions[1])] == tokens
    assert steps.ahead > 0 or always or sampling.top_logprobs
    assert sum(drafting.stats()["draft"]["drafted"]["dspark"]) > 0
    theirs, ours = (session.state.tensors() for session in sessions)
    reader = drafting.session()
    reader.feed(sessions[1].tokens)
    read = reader.state.tensors()
    for name, rows in ours.items():
        if name in theirs or always:
            np.testing.assert_array_equal(rows, theirs.get(name, read[name]), err_msg=name)


def test_auto_has_a_module_on_a_device_where_it_takes_nothing_from_others(with_module: Path) -> None:
    """Neither from experts nor, where the context is as long as fits, from that."""
    checkpoint = open_checkpoint(with_module)

    def planned(draft: str, free: int, context: int | None) -> tuple[bool, int, int]:
        model = EngineOptions(draft=draft).with_draft(checkpoint)
        chosen = EngineOptions(device="cuda", draft=draft, context=context)
        found, plan, tokens = plan_engine(model, chosen, Double(free=free), context)
        return found.has_dspark, plan.total, tokens

    for context in (512, None):
        wide, most, longest = planned("auto", 1 << 40, context)
        assert wide
        assert planned("auto", most, context) == (True, most, longest)
        left_out, total, tokens = planned("auto", most - 1, context)
        assert not left_out
        assert total < most
        assert tokens == longest
    assert planned("dspark", most - 1, None)[0]
