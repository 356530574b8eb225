"""Drafts in a cluster: they come with the last stage's replies, and change no answer."""

from collections.abc import Iterator

import pytest

import penstock
from penstock.chat.driver import ChatDriver
from penstock.chat.messages import question
from penstock.engine.engine import Engine
from penstock.engine.scheduler import Scheduler
from penstock.pocket import pocket_path
from tests.cluster.machines import cluster
from tests.drafting import force_drafts
from tests.engine.clients import Client, alone, finish

SAMPLINGS = {
    "greedy": penstock.Sampling(temperature=0, ignore_eos=True),
    "drawn": penstock.Sampling(temperature=0.8, seed=3, top_p=0.9, ignore_eos=True),
    "penalised": penstock.Sampling(temperature=0, repetition_penalty=1.2, ignore_eos=True),
}


@pytest.fixture(autouse=True)
def deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many drafts as there are."""
    force_drafts(monkeypatch)


@pytest.fixture(scope="module")
def whole() -> Iterator[Engine]:
    with Engine(pocket_path(), threads=1, context=1024, memory=None, learn="off", draft="off") as engine:
        yield engine


@pytest.fixture(scope="module")
def staged() -> Iterator[Engine]:
    with cluster(pocket_path(), 2, context=1024, prefill_chunk=64, sessions=4) as engine:
        yield engine


@pytest.mark.parametrize("name", SAMPLINGS)
def test_answers_are_the_same(whole: Engine, staged: Engine, name: str) -> None:
    asked = ChatDriver(whole).reply(question("Tell me a story about a fox.")).prompt.ids
    one, many = (list(engine.generate(asked, 80, SAMPLINGS[name])) for engine in (whole, staged))
    assert one == many


def test_a_step_gives_several_tokens(staged: Engine) -> None:
    """One way through the stages for a token and the guesses after it."""
    assert staged.drafters == ("ngram", "mtp")
    asked = ChatDriver(staged).reply(question("What is a penstock?")).prompt.ids
    before = staged.stats()
    tokens = len(list(staged.generate(asked, 80, SAMPLINGS["greedy"])))
    after = staged.stats()
    steps = after["cluster"]["members"][0]["steps"] - before["cluster"]["members"][0]["steps"]
    assert sum(after["draft"]["accepted"]["mtp"]) > sum(before["draft"]["accepted"]["mtp"])
    assert steps < 0.8 * tokens


def test_requests_together_get_the_answers_they_get_alone(whole: Engine, staged: Engine) -> None:
    clients = [
        Client([*range(100 + 7 * n, 130 + 7 * n)] * 2, 24, temperature=n % 2, seed=n) for n in range(5)
    ]
    scheduler = Scheduler(staged, parallel=4)
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)
    for client in clients:
        assert client.failure is None
        assert client.tokens == alone(whole, client)


def test_a_trial_ends_where_nobody_can_guess(staged: Engine) -> None:
    """No token that is drawn is the likeliest, so that the last stage never has a guess after it."""
    staged.speculation = staged.new_speculation()
    assert staged.speculation is not None
    unlike = penstock.Sampling(temperature=50, seed=1, ignore_eos=True)
    list(staged.generate([5, 6, 7], 40, unlike))
    assert staged.speculation.records["mtp"].trying == 0
    assert staged.runner.draft_seconds == 0.0


def test_nobody_guesses_where_nobody_asks(staged: Engine) -> None:
    staged.runner.keep_up(False)
    session = staged.session()
    session.feed([5, 6, 7])
    session.feed([8])
    assert staged.runner.draft_seconds == 0.0
    staged.runner.keep_up(True)
    session.feed([9])
    assert staged.runner.draft_seconds > 0.0
