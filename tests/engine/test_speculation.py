"""Drafts change how many steps an answer takes, and nothing else."""

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.chat.driver import ChatDriver
from penstock.chat.messages import Conversation, Message, Role, question
from penstock.engine import draft_record, speculation
from penstock.engine.drafters import Draft, Drafter
from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.session import Session
from penstock.engine.step_watch import Spent
from penstock.engine.steps import Step
from penstock.pocket import pocket_path
from tests.drafting import force_drafts
from tests.engine.clients import Client, alone, finish

ASKED = ("What is a penstock?", "Tell me a story about a fox.", "What is 17 + 25?")
SAID: dict[str, list[int]] = {}  # answers
DRAWN = (
    Sampling(temperature=0),
    Sampling(temperature=0.9, seed=5, top_k=40),
    Sampling(temperature=0, repetition_penalty=1.3, frequency_penalty=0.4),
    Sampling(temperature=1.0, seed=1, stop=("fox", "water"), top_logprobs=2),
    Sampling(temperature=1.2, seed=2, min_p=0.05, ignore_eos=True),
)


class Parrot(Drafter):
    """Knows the answer, and is wrong now and then."""

    name, free = "ngram", True
    answer: Sequence[int] = ()

    def __init__(self) -> None:
        self.said: list[int] = []

    def push(self, tokens: Sequence[int]) -> None:
        self.said += tokens

    def propose(self, _session: Session, _token: int, most: int, _least: float) -> list[Draft]:
        done = len(self.said)
        guesses = [t if (done + n) % 5 else (t + 1) % 4096 for n, t in enumerate(self.answer[done:])]
        return [Draft(guess, 0) for guess in guesses[:most]]


@pytest.fixture(scope="module", autouse=True)
def plain() -> Engine:
    engine = Engine(pocket_path(), draft="off")
    for text in ASKED:
        asked = ChatDriver(engine).reply(question(text)).prompt.ids
        SAID[text] = [step.token for step in engine.generate(asked, 60, Sampling(temperature=0))]
    return engine


@pytest.fixture(params=["ngram", "mtp", "auto"])
def drafting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Always drafts as far as it can."""
    force_drafts(monkeypatch)
    return Engine(pocket_path(), draft=request.param)


def prompt(engine: Engine, text: str) -> list[int]:
    """A question that was answered before: an answer begins like the other one."""
    asked = ChatDriver(engine).reply(question(text)).prompt.ids
    return [*asked, *SAID[text], *asked]


def answer(engine: Engine, text: str, sampling: Sampling, session: Session | None = None) -> list[Step]:
    return list(engine.generate(prompt(engine, text), 60, sampling, session))


@pytest.mark.parametrize("sampling", DRAWN, ids=range(len(DRAWN)))
def test_text_and_probabilities_are_the_same(plain: Engine, drafting: Engine, sampling: Sampling) -> None:
    for text in ASKED:
        assert answer(drafting, text, sampling) == answer(plain, text, sampling)
    found = drafting.stats()["draft"]
    assert sum(map(sum, found["drafted"].values()))
    assert found["steps"] < found["tokens"]


def test_the_session_is_as_if_there_had_been_no_drafts(plain: Engine, drafting: Engine) -> None:
    sessions = [plain.session(), drafting.session()]
    for engine, session in zip((plain, drafting), sessions, strict=True):
        answer(engine, ASKED[1], DRAWN[4], session)
    theirs, ours = (session.snapshot().state.tensors() for session in sessions)
    assert sessions[0].tokens == sessions[1].tokens
    assert sessions[0].max_rewind == sessions[1].max_rewind
    for name, rows in theirs.items():
        assert np.array_equal(rows, ours[name]), name
    for session in sessions:
        session.rewind(session.max_rewind)
    after = [np.array(session.feed([7, 8, 9], "all")) for session in sessions]
    assert np.array_equal(after[0], after[1])


def test_guesses_of_guesses_leave_no_trace() -> None:
    """The draft block tries out rows ahead; none of those that may be returned to is lost to them."""
    engine = Engine(pocket_path(), draft="mtp", max_rewind=8)
    session, ids = engine.session(), prompt(engine, ASKED[0]) * 20
    session.feed(ids)
    before = {name: rows.copy() for name, rows in session.state.tensors().items()}
    for _ in range(3):
        assert len(engine.stepper.draft(session, ids[0], 4, 0.0)) == 4
    for name, rows in session.state.tensors().items():
        assert np.array_equal(rows, before[name]), name
    first = engine.stepper.draft(session, ids[0], 1, 0.0)
    assert first[0][0] == int(engine.mtp_logits(session, ids[0]).argmax())
    assert engine.stepper.draft(session, ids[0], 4, 0.0)[:1] == first
    assert len(engine.stepper.draft(session, ids[0], 4, 1.0)) == 1  # unlikely: no more of them


def test_an_answer_ends_where_the_context_does(monkeypatch: pytest.MonkeyPatch) -> None:
    force_drafts(monkeypatch)
    for draft in ("off", "auto"):
        engine = Engine(pocket_path(), draft=draft, context=120)
        steps = list(engine.generate(prompt(engine, ASKED[0]), None, DRAWN[4]))
        assert steps[-1].finish_reason == "length"
        if draft == "off":
            expected = steps
    assert steps == expected


def test_everybody_gets_their_own_answer(plain: Engine, drafting: Engine) -> None:
    clients = [
        Client(prompt(plain, ASKED[n % 3]), 20 + n, temperature=(n % 2) * 0.8, seed=n) for n in range(6)
    ]
    scheduler = Scheduler(drafting, parallel=4)
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)
    for client in clients:
        assert client.tokens == alone(plain, client)
    found = drafting.stats()["draft"]
    assert found["steps"] < found["tokens"]


def test_good_drafts_save_steps(plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a drafter that is wrong in every fifth place, and rows that cost a tenth of a step."""
    steps = answer(plain, ASKED[1], DRAWN[4])
    Parrot.answer = [*prompt(plain, ASKED[1]), *(step.token for step in steps)]
    monkeypatch.setattr(speculation, "NgramDrafter", Parrot)
    engine = Engine(pocket_path(), draft="ngram")
    assert engine.speculation is not None
    monkeypatch.setattr(engine.speculation, "told", told_of(engine, lambda rows: 1 + 0.1 * rows))
    assert answer(engine, ASKED[1], DRAWN[4]) == steps
    assert engine.stats()["draft"]["steps_with_drafts"] >= 8
    assert engine.stats()["draft"]["accepted"]["ngram"][0] > 10


def test_bad_drafts_are_given_up(plain: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    Parrot.answer = [7] * 4096
    monkeypatch.setattr(speculation, "NgramDrafter", Parrot)
    engine = Engine(pocket_path(), draft="ngram")
    monkeypatch.setattr(engine.speculation, "told", told_of(engine, lambda rows: 0.5 + 0.5 * rows))
    for _ in range(5):
        answer(engine, ASKED[1], DRAWN[4])
    found = engine.stats()["draft"]
    assert found["steps_with_drafts"] < 0.1 * 5 * 60
    assert answer(engine, ASKED[0], DRAWN[0]) == answer(plain, ASKED[0], DRAWN[0])


def test_a_draft_block_that_does_not_pay_is_hardly_asked(
    plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row costs more than a step, so no guess is worth its place, right or wrong."""
    engine = Engine(pocket_path(), draft="mtp")
    monkeypatch.setattr(engine.speculation, "told", told_of(engine, lambda rows: 3.0 * rows))
    drafts, asked = engine.runner.draft, list[int]()

    def counted(slot: int, position: int, *rest: Any) -> Any:
        asked.append(position)
        return drafts(slot, position, *rest)

    monkeypatch.setattr(engine.runner, "draft", counted)
    sampling = Sampling(temperature=0, ignore_eos=True)
    one, other = (
        [step.token for step in each.generate(prompt(each, ASKED[1]), 900, sampling)]
        for each in (plain, engine)
    )
    assert one == other
    assert 0 < len(asked) <= 6 * draft_record.TRIED  # in trials, which are farther and farther apart
    assert engine.stats()["draft"]["tokens"] >= 890


def test_a_trial_in_which_nothing_is_right_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often guesses were right in the texts before."""
    engine = Engine(pocket_path(), draft="mtp")
    assert engine.speculation is not None
    monkeypatch.setattr(engine.speculation, "told", told_of(engine, lambda rows: 1.0 + 0.01 * rows))
    for place in range(4):
        for _ in range(100):
            engine.speculation.chances.told("mtp", place, 0, True)
    asked = list[int]()

    def wrong(*at: Any) -> list[tuple[int, float]]:
        asked.append(at[1])
        return [(engine.config.vocab_size - 1, 0.01)]

    monkeypatch.setattr(engine.runner, "draft", wrong)
    list(engine.generate(prompt(engine, ASKED[1]), 64, Sampling(temperature=0, ignore_eos=True)))
    assert len(asked) == draft_record.UNKNOWN * draft_record.TRIED // 2
    assert not engine.speculation.records["mtp"].open


@pytest.mark.parametrize("back", [0, 5, 30])
def test_a_block_that_did_not_keep_up_knows_what_it_followed_since(back: int) -> None:
    """The window is the same from there on, and nothing else of a session knows of it."""
    engine, ids = Engine(pocket_path(), draft="mtp"), list(range(100, 300))
    states = []
    for wanted in (True, False):
        session = engine.session()
        session.feed(ids[:50])
        for place, token in enumerate(ids[50:]):
            engine.stepper.keep_up(wanted or place >= 130)
            session.feed([token])
        session.rewind(back)
        for token in (7, 8, 9) * 9:
            session.feed([token])
        states.append(session.snapshot().state.tensors())
        assert engine.stepper.draft(session, 7, 1, 0.0)
    for name, rows in states[0].items():
        draft = {"mtp.0.window": slice(-25, None), "mtp.0.streams": slice(-1, None)}
        last = draft.get(name, slice(None))
        assert np.array_equal(rows[last], states[1][name][last]), name


def test_what_the_block_expects_is_the_same_though_it_did_not_keep_up() -> None:
    engine, ids = Engine(pocket_path(), draft="mtp"), list(range(100, 300))
    kept, left, moved = engine.session(), engine.session(), engine.session()
    kept.feed(ids)
    left.feed(ids[:50])
    engine.stepper.keep_up(False)
    for token in ids[50:]:
        left.feed([token])
    moved = left.fork()
    before, room = np.array(left.last_logits), left.max_rewind
    expected = engine.mtp_logits(kept, 7)
    for session in (left, moved, left):
        assert np.array_equal(engine.mtp_logits(session, 7), expected)
    assert left.tokens == ids
    assert np.array_equal(np.array(left.last_logits), before)
    assert left.max_rewind >= room


def test_a_session_saved_where_nobody_drafts_goes_on_where_somebody_does(
    plain: Engine, drafting: Engine, tmp_path: Path
) -> None:
    session = plain.session()
    session.feed(prompt(plain, ASKED[0]))
    session.save(tmp_path / "s")
    one, other = (
        list(engine.generate([7], 30, DRAWN[4], engine.load_session(tmp_path / "s")))
        for engine in (plain, drafting)
    )
    assert one == other


def test_a_repetition_is_noticed_though_an_answer_rests() -> None:
    shared, engine = speculation.Speculation(["ngram"]), Engine(pocket_path(), draft="off")
    session, speculator = engine.session(), shared.begin()
    for rows in (1, 2, 3) * 4:
        shared.costs.told(rows, 1.0 + 0.01 * rows)
    ids = [*range(100, 300), *range(100, 150)]
    session.feed(ids[:1])
    found = []
    for place, token in enumerate(ids[1:], 1):
        found.append(speculator.propose(session, token, 1))
        assert found[-1] in ([], [*ids, *range(150, 200)][place + 1 :][: len(found[-1])])
        if speculator.awake:
            speculator.judged(session, ids[place + 1 : place + 2])
        session.feed([token], logits="none")
    assert not any(found[:199])
    assert sum(map(bool, found[199:])) > 25


def test_nothing_is_guessed_that_nobody_would_hear() -> None:
    """Neither the token that ends an answer, nor what came behind it last time, nor more than may still come."""
    shared, engine = speculation.Speculation(["ngram"]), Engine(pocket_path(), draft="off")
    session = engine.session()
    generation = engine.generation(session, [], 100, Sampling(stop_token_ids=(112,)))
    speculator = shared.begin(generation)
    for rows in (1, 2, 3) * 4:
        shared.costs.told(rows, 1.0 + 0.01 * rows)
    ids = [*range(100, 140), *range(100, 110)]
    session.feed(ids[:1])
    found = []
    for place, token in enumerate(ids[1:], 1):
        found = speculator.propose(session, token, 1)
        if speculator.awake:
            speculator.judged(session, ids[place + 1 : place + 2])
        session.feed([token], logits="none")
    assert found == [110, 111]
    generation.remaining = 2
    assert speculator.propose(session, 110, 1) == [111]
    speculator.judged(session, [111])
    session.feed([110], logits="none")
    generation.remaining = 1
    assert speculator.propose(session, 111, 1) == []


def told_of(engine: Engine, seconds: Callable[[int], float]) -> Callable[..., None]:
    """Steps take as long as a test says, whatever else runs on the machine."""
    shared = engine.speculation
    assert shared is not None
    told = shared.told
    return lambda sequences, rows, tokens, _, begun: told(
        sequences, rows, tokens, Spent(seconds(rows)), begun
    )


def test_who_stops_listening_has_a_session_that_ends_there(plain: Engine, drafting: Engine) -> None:
    for count in range(1, 12):
        sessions = []
        for engine in (plain, drafting):
            session = engine.session()
            steps = engine.generate(prompt(engine, ASKED[1]), 60, DRAWN[0], session)
            said = [next(steps).token for _ in range(count)]
            assert isinstance(steps, Generator)
            steps.close()
            sessions.append((session.tokens, said))
        assert sessions[0] == sessions[1]


def test_drafts_do_not_change_how_often_a_token_is_drawn(plain: Engine) -> None:
    """Of many seeds, as often as its probability says, though the likeliest token is always the draft."""
    session, draws = plain.session(), 3000
    asked = ChatDriver(plain).reply(question(ASKED[1])).prompt.ids
    row = np.asarray(session.feed([*asked, SAID[ASKED[1]][0]]), np.float32)
    weights = np.exp(row.astype(np.float64) / 1.5)
    expected = weights / weights.sum()
    draft, counts = int(expected.argmax()), np.zeros(len(expected))
    for seed in range(draws):
        generation = plain.generation(session, asked, 3, Sampling(temperature=1.5, seed=seed))
        steps = list(speculation.verify(generation, [7, draft], np.stack([row, row]), session.position))
        assert len(steps) == 1 + (steps[0].token == draft)
        counts[steps[0].token] += 1
    for token in np.argsort(-expected)[:5]:
        deviation = np.sqrt(draws * expected[token] * (1 - expected[token]))
        assert abs(counts[token] - draws * expected[token]) < 4.5 * deviation + 1


def test_a_grammar_holds_drafts_too(plain: Engine, drafting: Engine) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    asked = Conversation(
        (Message(Role.SYSTEM, ""), Message(Role.USER, "Give me JSON with the key name and the value fox.")),
        response_schema=schema,
    )
    found = []
    for engine in (plain, drafting):
        reply = ChatDriver(engine).reply(asked)
        scheduler = Scheduler(engine, parallel=1)
        client = Client([*reply.prompt.ids, *reply.prompt.ids], 40, temperature=0.0)
        client.request.constraint = reply.constraint()
        scheduler.submit(client.request)
        finish(scheduler)
        found.append(client.tokens)
    assert found[0] == found[1]
