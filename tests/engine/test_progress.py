"""Reading a prompt tells how far it is, layer by layer, and can be ended on the way."""

from itertools import count

import numpy as np
import pytest

from penstock import Engine
from penstock.engine.progress import PrefillProgress, PrefillWatch, clock_time, short_rate
from penstock.engine.scheduler import Scheduler
from tests.engine.clients import Client, prompt
from tests.tiny import TinyModel


@pytest.fixture(scope="module")
def small_chunks(tiny: TinyModel) -> Engine:
    return Engine(tiny.folder, prefill_chunk=16)


def test_feeding_tells_of_every_layer(small_chunks: Engine) -> None:
    layers, heard = small_chunks.config.layer_count, list[float]()
    small_chunks.session().feed(prompt(1, 40), progress=heard.append)
    assert heard == pytest.approx(
        [16 * number / layers for number in range(1, 2 * layers + 1)]
        + [32 + 8 * number / layers for number in range(1, layers + 1)]
    )


def test_several_sessions_are_told_of_together(small_chunks: Engine) -> None:
    heard: list[float] = []
    work = [(small_chunks.session(), prompt(seed, 12)) for seed in (1, 2)]
    small_chunks.feed(work, progress=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 24


def test_who_raises_ends_the_feeding_after_a_whole_step(small_chunks: Engine) -> None:
    class EnoughError(Exception):
        pass

    def watch(read: float) -> None:
        if read > 20:
            raise EnoughError

    ids, session = prompt(1, 40), small_chunks.session()
    with pytest.raises(EnoughError):
        session.feed(ids, progress=watch)
    assert session.position == 16
    found, expected = session.feed(ids[16:]), small_chunks.session().feed(ids)
    assert found is not None
    assert expected is not None
    assert np.array_equal(found, expected)


def test_generating_tells_of_the_prompt(small_chunks: Engine) -> None:
    session, heard = small_chunks.session(), list[PrefillProgress]()
    session.feed(prompt(1, 10))
    next(small_chunks.generate(prompt(2, 30), session=session, progress=heard.append))
    assert (heard[-1].done, heard[-1].total, heard[-1].cached) == (40, 40, 10)
    assert all(10 <= progress.done <= 40 for progress in heard)


def test_requests_hear_of_a_step_while_it_runs(small_chunks: Engine) -> None:
    scheduler = Scheduler(small_chunks)
    scheduler.loop.told_every = 0.0
    client = Client(prompt(3, 16), max_tokens=1)
    scheduler.submit(client.request)
    scheduler.loop.step()
    layers = small_chunks.config.layer_count
    assert [reading.done for reading in client.readings] == [
        0,
        *(int(16 * number / layers) for number in range(1, layers)),
        16,
    ]


def test_without_a_limit_the_context_ends_it(tiny: TinyModel) -> None:
    with Engine(tiny.folder, context=24) as engine:
        from penstock import Sampling

        steps = list(engine.generate(prompt(1, 10), None, Sampling(ignore_eos=True)))
    assert len(steps) == 24 - 10 + 1
    assert steps[-1].finish_reason == "length"


def test_rate_and_time_left() -> None:
    ticks, heard = count(100.0, 40.0), list[PrefillProgress]()
    watch = PrefillWatch(3604, 100, heard.append, clock=lambda: next(ticks))
    watch(1024.7)
    assert (heard[0].done, heard[0].seconds, heard[0].rate) == (1124, 40.0, 25.6)
    assert heard[0].seconds_left == pytest.approx(96.875)
    assert str(heard[0]) == "1,124 of 3,604 tokens, 25.6 tokens/s, 1:37 left"
    assert str(PrefillProgress(100, 3604, 100)) == "100 of 3,604 tokens"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (97, "1:37"), (3599.7, "1:00:00"), (4000, "1:06:40")]
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert clock_time(seconds) == text


@pytest.mark.parametrize(("rate", "text"), [(0.251, "0.25"), (12.34, "12.3"), (1234.5, "1,234")])
def test_rates_for_people(rate: float, text: str) -> None:
    assert short_rate(rate) == text
