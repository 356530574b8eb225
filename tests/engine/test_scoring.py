"""Prompts that are scored: requests like others, in small pieces, beside everybody else."""

from pathlib import Path

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import PrefixCache
from penstock.engine.requests import Scored
from penstock.engine.scheduler import Scheduler
from penstock.engine.scoring import MAX_ROWS, score_rows
from penstock.errors import ContextLengthError, PenstockError, ReadError
from tests.engine.clients import Client, alone, finish, prompt


@pytest.fixture(scope="module")
def engine(every_attention: Path) -> Engine:
    return Engine(every_attention, context=1024, prefill_chunk=128)


def expected(engine: Engine, ids: list[int]) -> list[float]:
    """The log-probability of each token after the first, from all logits at once."""
    logits = engine.session().feed(ids, logits="all")
    assert logits is not None
    wide = logits.astype(np.float64)
    scores = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return [float(scores[place, token]) for place, token in enumerate(ids[1:])]


@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("length", [1, 2, 64, 65, 66, 300])
def test_every_token_after_the_first_has_a_score(engine: Engine, length: int, max_tokens: int) -> None:
    client = Client(prompt(1, length), max_tokens, score=2)
    scheduler = Scheduler(engine)
    scheduler.submit(client.request)
    finish(scheduler)
    assert client.over.is_set()
    assert [step.token for step in client.scores] == client.request.prompt[1:]
    assert [step.logprob for step in client.scores] == pytest.approx(
        expected(engine, client.request.prompt), abs=1e-5
    )
    assert all(len(step.top_logprobs) == 2 for step in client.scores)
    assert client.tokens == (alone(engine, client) if max_tokens else [])
    assert sum(isinstance(update, Scored) and update.last for update in client.updates) == (max_tokens == 0)


def test_what_is_cached_is_scored_all_the_same(engine: Engine) -> None:
    first, second = Client(prompt(1, 200)), Client(prompt(1, 200), 0, score=0)
    scheduler = Scheduler(engine)
    for client in (first, second):
        scheduler.submit(client.request)
        finish(scheduler)
    assert len(second.scores) == 199


def test_few_logits_at_a_time_and_those_who_decode_go_on(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    decodes, scored = Client(prompt(1, 4), 200), Client(prompt(2, 1000), 0, score=0)
    rows: list[int] = []
    begin = engine.stepper.begin

    def counting(work, *more):  # type: ignore[no-untyped-def]
        wanted = sum(rows for _, _, rows in work)
        rows.extend([wanted] if wanted > 1 else [])  # steps in which something is scored
        return begin(work, *more)

    monkeypatch.setattr(engine.stepper, "begin", counting)
    scheduler = Scheduler(engine)
    scheduler.submit(decodes.request)
    for _ in range(3):
        scheduler.loop.step()
    scheduler.submit(scored.request)
    while not scored.over.is_set():
        before = len(decodes.tokens)
        scheduler.loop.step()
        assert len(decodes.tokens) == min(before + 1, 200)  # one token in every step
    assert len(rows) >= 999 // MAX_ROWS
    assert max(rows) <= MAX_ROWS + 1
    monkeypatch.undo()
    finish(scheduler)
    assert decodes.tokens == alone(engine, decodes)


def test_logits_stay_within_the_memory_of_steps(engine: Engine) -> None:
    row = 4 * engine.config.vocab_size
    assert 2 * row * score_rows(engine) <= max(engine.plan.work // 4, 2 * row)


def test_prompts_that_are_read_and_scored_take_turns(engine: Engine) -> None:
    scored, read = Client(prompt(1, 900), 0, score=0), Client(prompt(2, 900), 2)
    scheduler = Scheduler(engine)
    for client in (scored, read):
        scheduler.submit(client.request)
    steps = 0
    while not read.tokens:
        scheduler.loop.step()
        steps += 1
    assert not scored.over.is_set()
    assert steps <= 2 * -(-900 // 128) + 1
    finish(scheduler)
    assert len(scored.scores) == 899
    assert read.tokens == alone(engine, read)


def test_one_that_is_cancelled_ends_before_the_next_step(engine: Engine) -> None:
    client = Client(prompt(1, 900), 0, score=0)
    scheduler = Scheduler(engine)
    scheduler.submit(client.request)
    scheduler.loop.step()
    seen = len(client.updates)
    client.request.cancel()
    scheduler.loop.step()
    assert len(client.updates) == seen
    assert scheduler.active == 0


def test_one_that_loses_its_slot_goes_on_where_it_was(engine: Engine) -> None:
    """Scored tokens are told once, whatever has to be read again."""
    room = engine.state_bytes(32) + engine.state_bytes(400)  # for both at first, not when they have grown
    scheduler = Scheduler(engine, prefix_cache=PrefixCache(engine, budget=room))
    older, client = Client(prompt(1, 30), 100), Client(prompt(2, 400), 3, score=1)
    for each in (older, client):
        scheduler.submit(each.request)
    finish(scheduler)
    assert scheduler.loop.paused > 0
    assert [step.token for step in client.scores] == client.request.prompt[1:]
    assert client.tokens == alone(engine, client)
    assert older.tokens == alone(engine, older)


def test_a_failure_stays_with_the_one_that_is_scored(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Client(prompt(1, 5), 12), Client(prompt(2, 500), 0, score=0)
    scheduler = Scheduler(engine)
    for client in (good, bad):
        scheduler.submit(client.request)
    scheduler.loop.step()

    begin = engine.stepper.begin

    def failing(work, *more):  # type: ignore[no-untyped-def]
        if any(rows > 1 for _, _, rows in work):
            raise ReadError("the disk is gone")
        return begin(work, *more)

    monkeypatch.setattr(engine.stepper, "begin", failing)
    finish(scheduler)
    assert isinstance(bad.failure, PenstockError)
    monkeypatch.undo()
    assert good.tokens == alone(engine, good)


def test_a_prompt_may_fill_the_context_if_nothing_follows(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    client = Client(prompt(1, 1024), 0, score=0)
    scheduler.submit(client.request)
    finish(scheduler)
    assert len(client.scores) == 1023
    with pytest.raises(ContextLengthError, match="do not fit"):
        scheduler.submit(Client(prompt(1, 1025), 0, score=0).request)
    with pytest.raises(ContextLengthError, match="no room for an answer"):
        scheduler.submit(Client(prompt(1, 1024), 1, score=0).request)
