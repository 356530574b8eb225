"""Many requests together: each one's answer is what it is alone, whoever else is there."""

from pathlib import Path

import pytest

from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import PrefixCache
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step
from penstock.errors import (
    BusyError,
    ContextLengthError,
    DeviceLostError,
    OptionError,
    ReadError,
    ShutdownError,
)
from tests.engine.clients import Client, alone, finish, prompt


@pytest.fixture(scope="module")
def engine(every_attention: Path) -> Engine:
    return Engine(every_attention, context=512, prefill_chunk=32)


def test_everybody_gets_their_own_answer(engine: Engine) -> None:
    clients = [Client(prompt(n, 5 + 23 * n), 4 + n, temperature=n % 2, seed=n) for n in range(7)]
    scheduler = Scheduler(engine, parallel=3)
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)
    for client in clients:
        assert client.tokens == alone(engine, client)
        last = client.updates[-1]
        assert isinstance(last, Step)
        assert last.finish_reason == "length"
        assert [reading.done for reading in client.readings] == sorted(r.done for r in client.readings)
        assert client.readings[-1].done == client.readings[-1].total == len(client.request.prompt)


def test_a_long_prompt_does_not_stop_those_who_decode(engine: Engine) -> None:
    short, long = Client(prompt(1, 4), 60), Client(prompt(2, 300), 2)
    scheduler = Scheduler(engine)
    scheduler.submit(short.request)
    for _ in range(5):
        scheduler.loop.step()
    scheduler.submit(long.request)
    before = len(short.tokens)
    steps = 0
    while not long.tokens:
        scheduler.loop.step()
        steps += 1
    assert steps >= 300 // 32
    assert len(short.tokens) - before == min(steps, 60 - before)  # one token in every step


def test_on_a_thread_of_its_own(engine: Engine) -> None:
    scheduler = Scheduler(engine, parallel=2)
    scheduler.start()
    clients = [Client(prompt(n, 10 + n)) for n in range(6)]
    for client in clients:
        scheduler.submit(client.request)
    for client in clients:
        assert client.over.wait(120)
        assert client.tokens == alone(engine, client)
    scheduler.stop()


def test_clients_take_turns(engine: Engine) -> None:
    """Whoever asks for little is not behind all that another has asked for before."""
    many, one = [Client(prompt(n, 5), 2) for n in range(5)], Client(prompt(9, 5), 2)
    scheduler, order = Scheduler(engine, parallel=1), list[Client]()
    for client in (*many, one):
        client.request.client = "one" if client is one else "many"
        scheduler.submit(client.request)
    while len(order) < 6:
        scheduler.loop.step()
        order += [client for client in (*many, one) if client.tokens and client not in order]
    assert order == [many[0], one, *many[1:]]


def test_who_has_most_waiting_gives_one_up(engine: Engine) -> None:
    many, one = [Client(prompt(n, 5), 2) for n in range(3)], Client(prompt(9, 5), 2)
    scheduler = Scheduler(engine, parallel=1, waiting=3)
    for client in (*many, one):
        client.request.client = "one" if client is one else "many"
        scheduler.submit(client.request)
    assert isinstance(many[2].failure, BusyError)
    with pytest.raises(BusyError):
        scheduler.submit(many[2].request)
    finish(scheduler)
    assert [bool(client.tokens) for client in (*many, one)] == [True, True, False, True]


def test_who_goes_away_is_forgotten(engine: Engine) -> None:
    stays, leaves, waits = Client(prompt(1, 5), 12), Client(prompt(2, 5), 400), Client(prompt(3, 5))
    scheduler = Scheduler(engine, parallel=2)
    for client in (stays, leaves, waits):
        scheduler.submit(client.request)
    for _ in range(3):
        scheduler.loop.step()
    leaves.request.cancel()
    seen = len(leaves.updates)
    scheduler.loop.step()
    assert len(leaves.updates) == seen
    assert scheduler.active == 2  # the one that waited is in
    finish(scheduler)
    assert stays.tokens == alone(engine, stays)
    assert waits.tokens == alone(engine, waits)


def test_what_is_wrong_is_said_at_once(engine: Engine) -> None:
    scheduler = Scheduler(engine, waiting=1)
    with pytest.raises(ContextLengthError, match="no room for an answer"):
        scheduler.submit(Client([1] * 512).request)
    with pytest.raises(OptionError, match="max_tokens"):
        scheduler.submit(Client([1], 0).request)
    scheduler.submit(Client([1]).request)
    with pytest.raises(BusyError, match="waiting"):
        scheduler.submit(Client([1]).request)


def test_one_failure_is_not_everybodys(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = Client(prompt(1, 5)), Client(prompt(2, 5))
    scheduler = Scheduler(engine)
    scheduler.submit(good.request)
    scheduler.submit(bad.request)
    for _ in range(3):
        scheduler.loop.step()
    begin = engine.stepper.begin
    _, broken = (slot.session for slot in scheduler.slots)

    def failing(work, *more):  # type: ignore[no-untyped-def]
        if any(session is broken for session, _, _ in work):
            raise ReadError("the disk is gone")
        return begin(work, *more)

    monkeypatch.setattr(engine.stepper, "begin", failing)
    finish(scheduler)
    assert isinstance(bad.failure, ReadError)
    assert good.failure is None
    monkeypatch.undo()
    assert good.tokens == alone(engine, good)


def test_stopping_tells_those_who_are_left(engine: Engine) -> None:
    scheduler = Scheduler(engine, parallel=1)
    scheduler.start()
    clients = [Client(prompt(n, 5), 450) for n in range(2)]
    for client in clients:
        scheduler.submit(client.request)
    scheduler.stop()
    for client in clients:
        assert isinstance(client.failure, ShutdownError)


# ── sessions that are used again ──────────────────────────────────────────────────────────────────────────────


def ask(scheduler: Scheduler, ids: list[int], max_tokens: int = 8) -> Client:
    client = Client(ids, max_tokens)
    scheduler.submit(client.request)
    finish(scheduler)
    return client


def test_what_was_read_is_not_read_again(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    first = ask(scheduler, prompt(1, 100))
    history = first.request.prompt + first.tokens
    second = ask(scheduler, history + prompt(2, 20))
    assert second.readings[0].cached == len(history) - 1  # the last token was sampled but never fed
    assert second.tokens == alone(engine, second)
    other = ask(scheduler, first.request.prompt + prompt(3, 30))  # the answer is told differently
    assert other.readings[0].cached == 100
    assert other.tokens == alone(engine, other)
    again = ask(scheduler, first.request.prompt)
    assert again.readings[0].cached == 99
    assert again.tokens == first.tokens
    stranger = ask(scheduler, prompt(9, 50))
    assert stranger.readings[0].cached == 0


def test_the_cache_has_a_budget(engine: Engine) -> None:
    cache = PrefixCache(engine, budget=3 * engine.state_bytes(40))
    for seed in range(6):
        session = engine.session()
        session.feed(prompt(seed, 40))
        cache.give(session)
    assert len(cache) <= 3
    assert cache.bytes <= cache.budget
    assert cache.take([*prompt(5, 40), 1]).session.position == 40
    assert cache.take([*prompt(0, 40), 1]).session.position == 0  # it was the first to go


def test_a_lost_device_is_the_end_for_all(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody hears why: who is being answered, who waits, and who comes later."""

    def lost(*_: object) -> None:
        raise DeviceLostError("the GPU is lost")

    monkeypatch.setattr(engine.runner, "begin", lost)
    clients, late = [Client(prompt(n, 10)) for n in range(3)], Client(prompt(4, 10))
    scheduler = Scheduler(engine, parallel=2)
    for client in clients:
        scheduler.submit(client.request)
    scheduler.start()
    for client in clients:
        assert client.over.wait(60)
        assert isinstance(client.failure, DeviceLostError)
    assert isinstance(scheduler.failure, DeviceLostError)
    with pytest.raises(DeviceLostError):
        scheduler.submit(late.request)
    scheduler.stop()
