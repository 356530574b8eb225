"""Many requests at once on several stages: steps overlap, and nobody's tokens change."""

import queue
from pathlib import Path
from typing import cast

import pytest

import penstock
from penstock.cluster.pieces import PromptPieces
from penstock.cluster.runner import ClusterRunner
from penstock.cluster.stage import Stage
from penstock.engine.engine import Engine
from penstock.engine.requests import Failed, Request
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step
from penstock.pocket import pocket_path
from tests.cluster.machines import cluster
from tests.engine.clients import Client, finish

GREEDY = penstock.Sampling(temperature=0, ignore_eos=True)
DRAWN = penstock.Sampling(temperature=0.9, seed=5, ignore_eos=True)
PROMPTS = [list(range(100 + 7 * n, 100 + 7 * n + length)) for n, length in enumerate((3, 300, 40, 170, 9))]


def answers(engine: Engine) -> list[list[int]]:
    """Of all prompts at once."""
    scheduler = Scheduler(engine, parallel=4)
    updates: list[queue.SimpleQueue[object]] = [queue.SimpleQueue() for _ in PROMPTS]
    for number, (prompt, heard) in enumerate(zip(PROMPTS, updates, strict=True)):
        scheduler.submit(Request(prompt, 12, (GREEDY, DRAWN)[number % 2], heard.put))
    scheduler.start()
    found = []
    for heard in updates:
        tokens: list[int] = []
        while True:
            update = heard.get(timeout=120)
            if isinstance(update, Failed):
                raise update.error
            if isinstance(update, Step):
                tokens.append(update.token)
                if update.finish_reason is not None:
                    break
        found.append(tokens)
    scheduler.stop()
    return found


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    with Engine(pocket_path(), threads=1, context=1024, memory=None, learn="off") as engine:
        return [
            [step.token for step in engine.generate(prompt, 12, (GREEDY, DRAWN)[number % 2])]
            for number, prompt in enumerate(PROMPTS)
        ]


@pytest.mark.parametrize(("stages", "layers"), [(2, "auto"), (3, "auto"), (2, "0:2,4:6"), (3, "0:1,4:5")])
def test_requests_in_flight_have_their_own_answers(
    stages: int, layers: str, expected: list[list[int]]
) -> None:
    with cluster(pocket_path(), stages, layers=layers, context=1024, prefill_chunk=32, sessions=4) as engine:
        assert answers(engine) == expected


def test_a_prompt_flows_through_the_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage is at the next piece before the last one has done this one."""
    began: list[tuple[int, int]] = []  # stage, and position of its step's first row
    forward = Stage.forward

    def noted(self: Stage, step, *more, **named):  # type: ignore[no-untyped-def]
        began.append((self.number, int(step.positions[0])))
        return forward(self, step, *more, **named)

    monkeypatch.setattr(Stage, "forward", noted)
    with cluster(pocket_path(), 2, context=1024, prefill_chunk=32) as engine:
        real, order = engine.stepper.finish, []

        def finished(begun):  # type: ignore[no-untyped-def]
            order.append((begun.positions[0], len([stage for stage, _ in began if stage == 0])))
            return real(begun)

        monkeypatch.setattr(engine.stepper, "finish", finished)
        engine.session().feed(list(range(100, 100 + 256)))
    # When a piece is waited for, the first stage has begun the one behind it.
    assert order[:-1] == [(32 * piece, piece + 2) for piece in range(7)]
    assert sorted(began) == sorted((stage, 32 * piece) for stage in (0, 1) for piece in range(8))


def test_the_disk_cache_works_in_a_cluster(tmp_path: Path) -> None:
    from penstock.engine.disk_sessions import DiskSessions

    prompt = list(range(100, 300))
    with cluster(pocket_path(), 2, context=1024) as engine:
        disk = DiskSessions(engine, tmp_path, 1 << 30)
        session = engine.session()
        session.feed(prompt)
        disk.save(session, "prompt")
        expected = session.feed([7])
        found = disk.fetch([*prompt, 7], 1)
        assert found is not None
        again = found[0].feed([7])
        assert expected is not None
        assert again is not None
        assert again.tolist() == expected.tolist()
        disk.close()


def test_a_head_learns_how_to_cut_prompts() -> None:
    with cluster(pocket_path(), 2, context=4096) as engine:
        assert engine.runner.piece(1024, 512) == 256  # nothing is known
        engine.session().feed(list(range(100, 900)))
        assert engine.runner.piece(64, 512) <= 64  # by what was measured
        assert 0 < engine.runner.piece(2048, 512) <= 512
    with cluster(pocket_path(), 2, context=4096, prefill_chunk=512) as engine:
        assert engine.runner.piece(128, 512) == 512  # as was said


def test_all_pieces_have_one_size_where_layers_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(pocket_path(), 2, layers="0:2,4:6", context=4096) as engine:
        session, rows = engine.session(), list[int]()
        runner = cast(ClusterRunner, engine.runner)
        begin, pieces = runner.begin, PromptPieces(16)
        for size in (128, 512):
            pieces.took(size, 0.042 + 0.001 * size)  # a step takes as long for the weights as for 42 rows
        monkeypatch.setattr(pieces, "took", lambda *_: None)  # how busy the machine is says nothing
        monkeypatch.setattr(runner, "_pieces", pieces)

        def noted(step, *more):  # type: ignore[no-untyped-def]
            rows.append(step.rows)
            return begin(step, *more)

        monkeypatch.setattr(runner, "begin", noted)
        session.feed(list(range(100, 1124)))
        assert pieces.size(1024, 2, 512, turns=2) == 342  # 3 of √(1024 · 42 · 2) = 293 rows at the least
        assert rows == [342, 342, 340]


CHOOSING = {
    "drawn": {"temperature": 0.9, "seed": 5, "top_k": 40, "top_p": 0.9},
    "with penalties": {"temperature": 0.8, "seed": 6, "repetition_penalty": 1.2, "presence_penalty": 0.3},
    "best with a bias": {"temperature": 0, "logit_bias": {7: -100.0, 9: 2.0}},
}


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.parametrize("scheduled", [False, True], ids=["alone", "scheduled"])
def test_tokens_are_chosen_without_a_question_of_their_own(
    monkeypatch: pytest.MonkeyPatch, name: str, scheduled: bool
) -> None:
    """How they are to be chosen is known before a step begins, and travels with it."""
    sampling = penstock.Sampling(ignore_eos=True, **CHOOSING[name])  # type: ignore[arg-type]
    with Engine(pocket_path(), threads=1, context=1024, memory=None, learn="off") as engine:
        expected = [step.token for step in engine.generate(PROMPTS[3], 12, sampling)]
    questions = []
    question = Stage.question

    def noted(self: Stage, message):  # type: ignore[no-untyped-def]
        questions.append(message.kind)
        return question(self, message)

    monkeypatch.setattr(Stage, "question", noted)
    with cluster(pocket_path(), 2, context=1024, prefill_chunk=64) as engine:
        if not scheduled:
            found = [step.token for step in engine.generate(PROMPTS[3], 12, sampling)]
        else:
            client = Client(PROMPTS[3], 12, **CHOOSING[name])  # type: ignore[arg-type]
            scheduler = Scheduler(engine)
            scheduler.submit(client.request)
            finish(scheduler)
            found = client.tokens
    assert found == expected
    assert not questions
