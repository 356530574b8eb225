"""What was read is not read again: by others at the same time, by the next turn, after a restart or a rest."""

import time
from pathlib import Path

import pytest

from penstock.engine.disk_sessions import DiskSessions
from penstock.engine.engine import Engine
from penstock.engine.prefix_cache import PrefixCache, common_length
from penstock.engine.scheduler import Scheduler
from penstock.errors import OptionError
from tests.engine.clients import Client, alone, finish, prompt


@pytest.fixture
def engine(every_attention: Path) -> Engine:
    return Engine(every_attention, context=8192, prefill_chunk=64)


def ask(scheduler: Scheduler, *clients: Client) -> None:
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)


def on_disk(engine: Engine, folder: Path) -> Scheduler:
    return Scheduler(engine, prefix_cache=PrefixCache(engine, disk=DiskSessions(engine, folder, 1 << 30)))


def test_the_same_prompt_several_times_at_once_is_read_once(engine: Engine) -> None:
    clients = [Client(prompt(1, 200), temperature=1.0, seed=n) for n in range(4)]
    scheduler = Scheduler(engine)
    ask(scheduler, *clients)
    assert [client.readings[0].cached for client in clients] == [0, 199, 199, 199]
    for client in clients:
        assert client.tokens == alone(engine, client)


def test_a_system_prompt_is_read_once_for_all_conversations(engine: Engine) -> None:
    system = prompt(1, 100)
    clients = [Client([*system, *prompt(10 + n, 30)], shared=100) for n in range(3)]
    scheduler = Scheduler(engine)
    ask(scheduler, *clients[:2])  # the second waits for the first to have read it
    ask(scheduler, clients[2])
    assert [client.readings[0].cached for client in clients] == [0, 100, 100]
    assert [client.readings[0].source for client in clients] == ["none", "memory", "memory"]
    for client in clients:
        assert client.tokens == alone(engine, client)


def test_a_system_prompt_that_is_pinned_is_found_by_its_label(engine: Engine, tmp_path: Path) -> None:
    system = prompt(1, 100)
    scheduler = on_disk(engine, tmp_path)
    first = Client([*system, *prompt(2, 200)], shared=100)
    ask(scheduler, first)
    assert scheduler.prefix_cache.pinned() == {}
    again = Client([*system, *prompt(2, 200)], shared=100, pin="agent")
    ask(scheduler, again)
    assert again.readings[0].cached == 100, "it stops where it is to be pinned, and reads nothing before that"
    assert again.tokens == first.tokens
    assert scheduler.prefix_cache.disk is not None
    scheduler.prefix_cache.disk.flush()
    assert scheduler.prefix_cache.pinned() == {"agent": 100}
    assert on_disk(engine, tmp_path).prefix_cache.pinned() == {"agent": 100}


def test_without_a_disk_it_is_pinned_in_memory(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    ask(scheduler, Client(prompt(1, 90), shared=64, pin="a"), Client(prompt(2, 90), shared=70, pin="a"))
    assert scheduler.prefix_cache.pinned() == {"a": 70}


def test_the_pace_of_reading_is_known_after_some_reading(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    ask(scheduler, Client(prompt(1, 30)))
    assert scheduler.loop.prefill_per_second is None
    ask(scheduler, Client(prompt(2, 300)))
    assert (scheduler.loop.prefill_per_second or 0) > 0


def test_who_waits_for_one_who_leaves_reads_for_itself(engine: Engine) -> None:
    leaves, stays = Client(prompt(1, 300)), Client([*prompt(1, 299), 7, 8])
    scheduler = Scheduler(engine)
    scheduler.submit(leaves.request)
    scheduler.submit(stays.request)
    scheduler.loop.step()
    assert (scheduler.active, scheduler.waiting) == (1, 1)
    leaves.request.cancel()
    finish(scheduler)
    assert stays.tokens == alone(engine, stays)
    assert stays.readings[0].cached > 0  # what the other had read by then


def test_a_session_that_cannot_return_is_told_apart_from_none(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    ask(scheduler, Client(prompt(1, 300)))
    changed = Client([*prompt(1, 100), *prompt(2, 100)])
    new = Client(prompt(3, 50))
    ask(scheduler, changed, new)
    assert (changed.readings[0].source, changed.readings[0].reason) == ("none", "changed")
    assert (new.readings[0].source, new.readings[0].reason) == ("none", "new")


def test_sessions_in_use_stay_within_their_memory(engine: Engine) -> None:
    """Two answers that grow beyond it: the younger steps back, and says the same in the end."""
    clients = [Client(prompt(n, 40), 300) for n in (1, 2)]
    budget = engine.state_bytes(200) + engine.state_bytes(220)
    scheduler = Scheduler(engine, prefix_cache=PrefixCache(engine, budget))
    for client in clients:
        scheduler.submit(client.request)
    while scheduler.active or scheduler.waiting:
        scheduler.loop.step()
        assert scheduler.prefix_cache.in_use + scheduler.prefix_cache.bytes <= budget + engine.state_bytes(0)
    assert scheduler.loop.paused >= 1
    for client in clients:
        assert client.tokens == alone(engine, client)
        assert len([r for r in client.readings if r.done == r.total]) == 1


def test_the_next_turn_after_a_restart(every_attention: Path, engine: Engine, tmp_path: Path) -> None:
    first = Client(prompt(1, 500), shared=80)
    scheduler = on_disk(engine, tmp_path)
    ask(scheduler, first)
    scheduler.stop()
    scheduler.prefix_cache.save()
    assert scheduler.prefix_cache.disk is not None
    scheduler.prefix_cache.disk.close()

    again = Engine(every_attention, context=8192, prefill_chunk=64)
    restarted = on_disk(again, tmp_path)
    second = Client([*first.request.prompt, *first.tokens, *prompt(2, 20)])
    restarted.prefix_cache.fetch(second.request.prompt)
    ask(restarted, second)
    assert second.readings[0].source == "disk"
    assert second.readings[0].cached == 500 + len(first.tokens) - 1  # the last one was chosen and never read
    assert second.tokens == alone(again, second)


def test_a_crash_loses_only_the_answer(every_attention: Path, engine: Engine, tmp_path: Path) -> None:
    first = Client(prompt(1, 500), shared=80)
    scheduler = on_disk(engine, tmp_path)
    ask(scheduler, first)
    assert scheduler.prefix_cache.disk is not None
    scheduler.prefix_cache.disk.flush()  # and that was all

    again = Engine(every_attention, context=8192, prefill_chunk=64)
    restarted = on_disk(again, tmp_path)
    second, other = Client([*first.request.prompt, *first.tokens, 5]), Client([*prompt(1, 80), *prompt(3, 9)])
    for client, cached in ((second, 499), (other, 80)):
        restarted.prefix_cache.fetch(client.request.prompt)
        ask(restarted, client)
        assert client.readings[0].cached == cached
        assert client.tokens == alone(again, client)


def test_a_long_prompt_that_nobody_waited_for_is_not_lost(engine: Engine, tmp_path: Path) -> None:
    client = Client(prompt(1, 5000))
    scheduler = on_disk(engine, tmp_path)
    scheduler.submit(client.request)
    while not client.readings or client.readings[-1].done < 4500:
        scheduler.loop.step()
    client.request.cancel()
    scheduler.loop.step()
    assert scheduler.prefix_cache.disk is not None
    scheduler.prefix_cache.disk.flush()
    lengths = {entry.length: entry.kind for entry in scheduler.prefix_cache.disk.store.entries()}
    assert lengths == {2048: "frontier", 4096: "frontier"}


def test_who_leaves_memory_goes_to_disk(engine: Engine, tmp_path: Path) -> None:
    disk = DiskSessions(engine, tmp_path, 1 << 30)
    cache = PrefixCache(engine, budget=2 * engine.state_bytes(100), disk=disk)
    for seed in range(4):
        session = engine.session()
        session.feed(prompt(seed, 100), logits="none")
        cache.give(session)
        disk.flush()
    assert (len(cache), len(disk.store)) == (2, 2)
    cache.fetch([*prompt(0, 100), 1])
    taken = cache.take([*prompt(0, 100), 1])
    assert (taken.source, taken.session.position) == ("disk", 100)


# ── parking ───────────────────────────────────────────────────────────────────────────────────────────────


def until(condition: object, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_weights_leave_memory_and_come_back(every_attention: Path, tmp_path: Path) -> None:
    engine = Engine(every_attention, context=8192, load=False)
    assert engine.parked
    scheduler = on_disk(engine, tmp_path)
    scheduler.park_after = 0.05
    scheduler.start()
    first = Client(prompt(1, 50))
    scheduler.submit(first.request)
    assert first.over.wait(120)
    assert scheduler.ready
    until(lambda: engine.parked)
    assert engine.stats()["mode"] == "parked"
    assert len(scheduler.prefix_cache) == 0  # they are on disk
    second = Client([*first.request.prompt, *first.tokens, 3])
    scheduler.prefix_cache.fetch(second.request.prompt)
    scheduler.submit(second.request)
    assert second.over.wait(120)
    assert second.readings[0].cached == 57
    scheduler.stop()
    assert second.tokens == alone(engine, second)


def test_parking_on_request(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    scheduler.start()
    busy = Client(prompt(1, 20), 200)
    scheduler.submit(busy.request)
    scheduler.park()  # once nobody needs them
    assert busy.over.wait(120)
    assert busy.failure is None
    until(lambda: engine.parked)
    scheduler.park(False)
    until(lambda: not engine.parked)
    scheduler.stop()


def test_a_model_that_cannot_be_read(every_attention: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(every_attention, context=512, load=False)

    def refuse() -> None:
        raise OptionError("no such weights")

    monkeypatch.setattr(engine, "load", refuse)
    scheduler = Scheduler(engine)
    scheduler.start()
    until(lambda: scheduler.failure is not None)
    scheduler.stop()
    assert str(scheduler.failure) == "no such weights"


def test_an_engine_with_a_trace_stays(every_attention: Path, tmp_path: Path) -> None:
    engine = Engine(every_attention, context=512, trace=tmp_path / "t.trace")
    with engine, pytest.raises(OptionError, match="trace"):
        engine.park()
    with pytest.raises(OptionError, match="closed"):
        engine.session().feed([1])


def test_common_length() -> None:
    long = prompt(1, 5000)
    assert common_length(long, long) == 5000
    for place in (0, 1, 1023, 1024, 1025, 4999):
        other = [*long[:place], -1, *long[place + 1 :]]
        assert common_length(long, other) == common_length(other, long) == place
    assert common_length(long, long[:77]) == 77
    assert common_length([], long) == 0


def test_memory_for_sessions_follows_the_plan(every_attention: Path) -> None:
    """Enough for those in use at the same time; more where the plan leaves some; never more than there is."""
    one, eight = (
        Engine(every_attention, context=8192, memory="500MiB", sessions=n, load=False) for n in (1, 8)
    )
    assert one.plan.state == one.state_bytes(8192)
    assert eight.plan.state == one.plan.state + 7 * one.state_bytes(1024)
    for engine in (one, eight):
        budget = PrefixCache(engine).budget
        assert engine.plan.state < budget  # the model is small: it leaves most of 500 MiB
        assert engine.plan.total - engine.plan.state + budget <= 500 << 20
    tight = Engine(
        every_attention, context=8192, memory=one.plan.smallest + (1 << 20), streaming="direct", load=False
    )
    assert PrefixCache(tight).budget - tight.plan.state <= 1 << 20
    assert PrefixCache(Engine(every_attention, context=8192, load=False)).budget == 64 << 20
