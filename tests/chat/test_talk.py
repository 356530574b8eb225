"""Conversations on an engine: nothing is read twice that need not be."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock import Engine
from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta
from penstock.chat.messages import Conversation, Role, Thinking
from penstock.chat.render import render
from penstock.chat.talk import Talk, session_path
from penstock.engine.sampling import Sampling
from penstock.errors import ContextLengthError, SnapshotError
from penstock.weights.synth import synth

SAMPLING = Sampling(seed=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tmp_path_factory.mktemp("talk") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q2")
    return Engine(path, max_rewind=8, context=600)


def say(talk: Talk, text: str, tokens: int = 20) -> list[Event]:
    return list(talk.say(text, tokens, SAMPLING))


def fresh_answer(talk: Talk, text: str, tokens: int = 20) -> list[Event]:
    """What a new session says to the same conversation."""
    return list(Talk(talk.engine, talk.conversation).say(text, tokens, SAMPLING))


@pytest.mark.parametrize("thinking", [Thinking.OFF, Thinking.LOW])
def test_turns_feed_only_what_is_new(engine: Engine, thinking: Thinking) -> None:
    end_think = engine.tokenizer.token_id("</think>")
    assert end_think is not None
    for seed in range(50):  # until reasoning begins, and ends before the tokens do
        sampling = Sampling(seed=seed, logit_bias={end_think: 7.0})
        talk = Talk(engine, Conversation((), thinking=thinking))
        talk.set_system("You are " + "very " * 20 + "brief.")
        list(talk.say("hello", 40, sampling))
        first = talk.prompt_tokens
        assert talk.fed_tokens == first
        answer = talk.conversation.messages[-1]
        if answer.content and bool(answer.reasoning) == (thinking is Thinking.LOW):
            break
    else:
        pytest.fail("no seed gave reasoning and an answer")
    expected = list(Talk(engine, talk.conversation).say("and?", 20, sampling))
    assert list(talk.say("and?", 20, sampling)) == expected
    # Without the reasoning: what was answered and asked.  With it: also from where it began.
    assert talk.fed_tokens <= talk.prompt_tokens - first + 1


def test_a_session_that_cannot_be_taken_back_is_replaced(engine: Engine) -> None:
    talk = Talk(engine)
    say(talk, "hello")
    talk.set_system("Now with a system text.")
    expected = fresh_answer(talk, "and?")
    assert say(talk, "and?") == expected
    assert talk.fed_tokens == talk.prompt_tokens


def test_reset_keeps_the_system_text(engine: Engine) -> None:
    talk = Talk(engine)
    talk.set_system("S")
    say(talk, "hello")
    talk.reset()
    assert [m.role for m in talk.conversation.messages] == [Role.SYSTEM]
    assert say(talk, "hello")


def test_an_answer_that_is_stopped_is_kept_and_goes_on_being_true(engine: Engine) -> None:
    talk = Talk(engine)
    asked = count()
    events = list(talk.say("hello", 50, SAMPLING, stopped=lambda: next(asked) > 4))
    assert events[-1] == Done("length")
    answer = talk.conversation.messages[-1]
    assert answer.role is Role.ASSISTANT
    assert answer.sampled is not None
    assert len(answer.sampled) < 50
    expected = fresh_answer(talk, "more")
    assert say(talk, "more") == expected


def test_reasoning_that_is_stopped_is_not_an_answer(engine: Engine) -> None:
    talk = Talk(engine, Conversation((), thinking=Thinking.LOW))
    list(talk.say("hello", 3, SAMPLING))
    assert talk.conversation.messages[-1].sampled is None
    assert fresh_answer(talk, "more") == say(talk, "more")


def test_stopped_before_the_answer(engine: Engine) -> None:
    talk = Talk(engine)
    assert list(talk.say("hello", 50, stopped=lambda: True)) == []
    assert talk.conversation.messages == ()


def test_leaving_the_iterator_early(engine: Engine) -> None:
    talk = Talk(engine)
    events: Iterator[Event] = talk.say("hello", 50, SAMPLING)
    assert isinstance(next(events), TextDelta | ReasoningDelta)
    events.close()  # type: ignore[attr-defined]
    assert len(talk.conversation.messages) == 2


def test_a_conversation_that_outgrows_the_context(engine: Engine) -> None:
    talk = Talk(engine)
    with pytest.raises(ContextLengthError, match="/reset"):
        say(talk, "x" * 700)
    assert talk.conversation.messages == ()
    assert say(talk, "short")


def test_saving_and_loading(engine: Engine, tmp_path: Path) -> None:
    talk = Talk(engine)
    say(talk, "hello")
    talk.save(tmp_path / "c")
    other = Talk(engine)
    assert other.load(tmp_path / "c") is None
    assert other.conversation == talk.conversation
    assert say(other, "and?") == say(talk, "and?")
    assert other.fed_tokens == talk.fed_tokens < talk.prompt_tokens
    assert render(other.conversation).text == render(talk.conversation).text

    session_path(tmp_path / "c").write_bytes(b"damaged")
    assert "c.session" in str(Talk(engine).load(tmp_path / "c"))
    (tmp_path / "c").write_text("{}")
    kept = other.conversation
    with pytest.raises(SnapshotError, match="not a saved conversation"):
        other.load(tmp_path / "c")
    assert other.conversation is kept
    with pytest.raises(SnapshotError, match="cannot be read"):
        other.load(tmp_path / "nothing")
