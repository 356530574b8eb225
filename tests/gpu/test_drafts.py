"""Drafts on the card: text, probabilities and sessions are the same with them, however many of them are right."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.forced_drafts import forced
from penstock import Engine
from penstock.chat.driver import ChatDriver
from penstock.chat.messages import question
from penstock.engine import speculation
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.pocket import pocket_path
from tests.drafting import force_drafts
from tests.engine.clients import Client, alone, finish

TOKENS = 80
GREEDY = Sampling(temperature=0, ignore_eos=True)


def ids(count: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(2, 4000, count)]


def open_pocket(draft: str) -> Engine:
    return Engine(pocket_path(), device="cuda", context=2048, draft=draft, threads=4)


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with open_pocket("off") as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting() -> Iterator[Engine]:
    with open_pocket("ngram") as engine:
        yield engine


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many drafts as there are."""
    force_drafts(monkeypatch)


def test_auto_drafts_without_weights_on_a_card() -> None:
    with open_pocket("auto") as engine:
        assert engine.drafters == ("ngram",)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_draft_block_that_did_not_keep_up_goes_on_later(plain: Engine, rows: int) -> None:
    """It looks 32 pairs back: after as many it is as if it had followed all the time."""
    with open_pocket("mtp") as engine:
        found = []
        for keeps_up in (True, False):
            session = engine.session()
            session.feed(ids(40))
            engine.stepper.keep_up(keeps_up)
            for first in range(0, 20, rows):
                session.feed(ids(20, seed=2)[first : first + rows])
            engine.stepper.keep_up(True)
            for token in ids(engine.config.window + 2, seed=3):
                session.feed([token])
            found.append(engine.stepper.draft(session, 5, 3, 0.0))
            wanted = plain.session()
            wanted.feed(session.tokens)
            np.testing.assert_array_equal(session.feed([5]), wanted.feed([5]))
        assert found[0] == found[1]


@pytest.mark.parametrize("most", [1, 2, 3, 8])
@pytest.mark.parametrize("right", [0.0, 0.8, 1.0])
@pytest.mark.parametrize("chosen", [{"temperature": 0}, {"temperature": 1, "seed": 3}], ids=str)
def test_text_and_session_are_the_same(
    plain: Engine,
    drafting: Engine,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    right: float,
    chosen: dict[str, Any],
) -> None:
    """Over the ends of windows and of compressed groups; a wrong draft leaves nothing in any of them."""
    monkeypatch.setattr(speculation, "best_depth", lambda chances, *_: (min(most, len(chances)), 2.0))
    sampling, asked = Sampling(ignore_eos=True, **chosen), ids(100, seed=2)
    sessions = plain.session(), drafting.session()
    wanted = list(plain.generate(asked, TOKENS, sampling, sessions[0]))
    with forced([*asked, *(step.token for step in wanted)], right):
        found = list(drafting.generate(asked, TOKENS, sampling, sessions[1]))
    assert [(step.token, step.logprob) for step in found] == [(step.token, step.logprob) for step in wanted]
    theirs, ours = (session.state.tensors() for session in sessions)
    for name, rows in theirs.items():
        np.testing.assert_array_equal(rows, ours[name], err_msg=name)
    one, other = (session.feed(ids(9, seed=3), "all") for session in sessions)
    np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("deep")
@pytest.mark.parametrize("draft", ["ngram", "mtp", "auto"])
def test_text_with_real_drafters(plain: Engine, draft: str) -> None:
    """A question that was answered before: the answer is the same once more."""
    once = ChatDriver(plain).reply(question("Tell me a story about a fox.")).prompt.ids
    asked = [*once, *(step.token for step in plain.generate(once, TOKENS, GREEDY)), *once]
    wanted = [step.token for step in plain.generate(asked, TOKENS, GREEDY)]
    with open_pocket(draft) as engine:
        assert [step.token for step in engine.generate(asked, TOKENS, GREEDY)] == wanted
        assert engine.stats()["draft"]["steps_with_drafts"] > 0


@pytest.mark.usefixtures("deep")
def test_requests_together_get_the_answers_they_get_alone(plain: Engine, drafting: Engine) -> None:
    clients = [
        Client(ids(30, seed=n % 2) * 2, 20 + 5 * n, temperature=n % 2, seed=n, top_p=0.9) for n in range(6)
    ]
    scheduler = Scheduler(drafting, parallel=4)
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)
    for client in clients:
        assert client.failure is None
        assert client.tokens == alone(plain, client)
