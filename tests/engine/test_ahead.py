"""Steps that begin before their tokens are known change no answer and no session, and are rarely in vain."""

import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.session import Session
from penstock.errors import ReadError
from tests.engine.clients import Client, alone, finish, prompt
from tests.engine.elsewhere import Steps


@pytest.fixture(scope="module")
def plain(every_attention: Path) -> Engine:
    return Engine(every_attention, context=256, prefill_chunk=32, draft="off")


@pytest.fixture
def engine(every_attention: Path) -> Engine:
    return Engine(every_attention, context=256, prefill_chunk=32, draft="off")


def states(session: Session) -> dict[str, Any]:
    return {name: np.array(rows) for name, rows in session.state.tensors().items()}


@pytest.mark.parametrize(
    "chosen",
    [
        {"temperature": 0},
        {"temperature": 1, "top_p": 0.9, "seed": 3},
        {"temperature": 0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"temperature": 1, "seed": 5, "logit_bias": {7: 3.0}},
    ],
    ids=str,
)
def test_the_answer_is_the_same(engine: Engine, plain: Engine, steps: Steps, chosen: dict[str, Any]) -> None:
    sampling = Sampling(ignore_eos=True, **chosen)
    found = list(engine.generate(prompt(1, 20), 24, sampling))
    wanted = list(plain.generate(prompt(1, 20), 24, sampling))
    assert [step.token for step in found] == [step.token for step in wanted]
    assert [step.logprob for step in found] == pytest.approx([step.logprob for step in wanted], abs=1e-6)
    assert steps.ahead == 23  # all but the prompt's own; nothing follows the last token
    assert steps.ran == 24


def test_a_session_stands_where_its_last_token_left_it(engine: Engine, plain: Engine, steps: Steps) -> None:
    sampling, sessions = Sampling(temperature=0, ignore_eos=True), (engine.session(), plain.session())
    for one, other in zip(
        engine.generate(prompt(2, 9), 12, sampling, sessions[0]),
        plain.generate(prompt(2, 9), 12, sampling, sessions[1]),
        strict=True,
    ):
        assert one.token == other.token
        assert sessions[0].tokens == sessions[1].tokens
        found, wanted = states(sessions[0]), states(sessions[1])
        for name, rows in wanted.items():
            np.testing.assert_array_equal(found[name], rows)
    assert steps.ahead > 0


def test_an_end_leaves_no_trace(engine: Engine, plain: Engine, steps: Steps) -> None:
    end = [step.token for step in plain.generate(prompt(3, 9), 6, Sampling(temperature=0, ignore_eos=True))][
        -1
    ]
    sampling, found = Sampling(temperature=0, ignore_eos=True, stop_token_ids=(end,)), []
    for each in (engine, plain):
        session = each.session()
        assert list(each.generate(prompt(3, 9), 20, sampling, session))[-1].finish_reason == "stop"
        found.append(session.feed([4, 5]))
    assert np.array_equal(found[0], found[1])  # type: ignore[arg-type]
    assert steps.ahead > 0


def test_what_is_done_between_tokens_counts(engine: Engine, plain: Engine, steps: Steps) -> None:
    """A caller who takes tokens back, or feeds others, gets what they ask for."""
    found = []
    for each in (engine, plain):
        session, sampling = each.session(), Sampling(temperature=0, ignore_eos=True)
        answer = each.generate(prompt(4, 9), 20, sampling, session)
        list(islice(answer, 4))
        fork = session.fork()
        session.rewind(2)
        logits = [session.feed([9]), fork.feed([11, 12])]
        found.append([*logits, [step.token for step in islice(answer, 4)]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert steps.ahead > 0


def test_two_who_take_turns_do_not_compute_in_vain_for_long(
    engine: Engine, plain: Engine, steps: Steps
) -> None:
    sampling = Sampling(temperature=0, ignore_eos=True)
    both = [engine.generate(prompt(n, 9), 60, sampling) for n in (5, 6)]
    found = [[one.token, other.token] for one, other in zip(*both, strict=True)]
    wanted = zip(*(plain.generate(prompt(n, 9), 60, sampling) for n in (5, 6)), strict=True)
    assert found == [[one.token, other.token] for one, other in wanted]
    assert steps.ran < 120 + 20


def test_logits_that_are_wanted_here_are_not_run_ahead_of(engine: Engine, steps: Steps) -> None:
    list(engine.generate(prompt(7, 9), 5, Sampling(temperature=0, top_logprobs=2, ignore_eos=True)))
    assert steps.ahead == 0


def test_a_failure_is_told_with_the_step_that_needs_it(engine: Engine, plain: Engine, steps: Steps) -> None:
    steps.fails = ReadError("the disk is gone")
    sampling = Sampling(temperature=0, ignore_eos=True)
    found = [step.token for step in engine.generate(prompt(8, 9), 5, sampling)]
    assert found == [step.token for step in plain.generate(prompt(8, 9), 5, sampling)]


def test_parking_forgets_it(engine: Engine, plain: Engine, steps: Steps) -> None:
    sampling = Sampling(temperature=0, ignore_eos=True)
    answer = engine.generate(prompt(9, 9), 10, sampling)
    found = [step.token for step in islice(answer, 3)]
    assert steps.ahead == 3
    engine.park()
    found += [step.token for step in answer]
    assert found == [step.token for step in plain.generate(prompt(9, 9), 10, sampling)]


def test_requests_together_get_the_answers_they_get_alone(
    engine: Engine, plain: Engine, steps: Steps
) -> None:
    clients = [
        Client(prompt(n, 9 + 11 * n), 9 + 5 * n, temperature=n % 2, seed=n, repetition_penalty=1.1)
        for n in range(6)
    ]
    scheduler = Scheduler(engine, parallel=4)
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)
    for client in clients:
        assert client.tokens == alone(plain, client)
    rows = sum(len(client.tokens) for client in clients)
    assert steps.ahead > 20
    assert steps.ran < rows


def test_who_comes_later_or_goes_does_not_disturb_those_who_stay(
    engine: Engine, plain: Engine, steps: Steps
) -> None:
    first, second, third = Client(prompt(11, 9), 30), Client(prompt(12, 60), 8), Client(prompt(13, 9), 30)
    scheduler = Scheduler(engine, parallel=3)
    scheduler.submit(first.request)
    scheduler.submit(third.request)
    for _ in range(8):
        scheduler.loop.step()
    before = steps.ran
    scheduler.submit(second.request)
    scheduler.loop.step()  # what had begun
    assert steps.ran == before
    third.request.cancel()
    finish(scheduler)
    assert first.tokens == alone(plain, first)
    assert second.tokens == alone(plain, second)
    assert third.tokens == alone(plain, third)[: len(third.tokens)]


def test_two_threads_get_their_own_answers(engine: Engine, plain: Engine) -> None:
    Steps(engine)
    sampling, found = Sampling(temperature=0, ignore_eos=True), dict[int, list[int]]()

    def answer(seed: int) -> None:
        found[seed] = [step.token for step in engine.generate(prompt(seed, 9), 20, sampling)]

    threads = [threading.Thread(target=answer, args=(seed,)) for seed in (14, 15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, tokens in found.items():
        assert tokens == [step.token for step in plain.generate(prompt(seed, 9), 20, sampling)]
