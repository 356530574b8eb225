"""Conversations on an engine: nothing is read twice that need not be."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock import Engine
from penstock.chat.chat_session import ChatSession, session_path
from penstock.chat.deepseek_v4.render import render
from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta
from penstock.chat.messages import Conversation, Role, Thinking
from penstock.engine.sampling import Sampling
from penstock.errors import ContextLengthError, SnapshotError
from penstock.weights.synth import synth

SAMPLING = Sampling(seed=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tmp_path_factory.mktemp("chat") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q2")
    return Engine(path, max_rewind=8, context=600)


def say(chat: ChatSession, text: str, tokens: int = 20) -> list[Event]:
    return list(chat.say(text, tokens, SAMPLING))


def fresh_answer(chat: ChatSession, text: str, tokens: int = 20) -> list[Event]:
    """What a new session says to the same conversation."""
    return list(ChatSession(chat.engine, chat.conversation).say(text, tokens, SAMPLING))


@pytest.mark.parametrize("thinking", [Thinking.OFF, Thinking.LOW])
def test_turns_feed_only_what_is_new(engine: Engine, thinking: Thinking) -> None:
    end_think = engine.tokenizer.token_id("</think>")
    assert end_think is not None
    for seed in range(50):  # until reasoning begins, and ends before the tokens do
        sampling = Sampling(seed=seed, logit_bias={end_think: 7.0})
        chat = ChatSession(engine, Conversation((), thinking=thinking))
        chat.set_system("You are " + "very " * 20 + "brief.")
        list(chat.say("hello", 40, sampling))
        first = chat.prompt_tokens
        assert chat.fed_tokens == first
        answer = chat.conversation.messages[-1]
        if answer.content and bool(answer.reasoning) == (thinking is Thinking.LOW):
            break
    else:
        pytest.fail("no seed gave reasoning and an answer")
    expected = list(ChatSession(engine, chat.conversation).say("and?", 20, sampling))
    assert list(chat.say("and?", 20, sampling)) == expected
    # Without the reasoning: what was answered and asked.  With it: also from where it began.
    assert chat.fed_tokens <= chat.prompt_tokens - first + 1


def test_a_session_that_cannot_be_taken_back_is_replaced(engine: Engine) -> None:
    chat = ChatSession(engine)
    say(chat, "hello")
    chat.set_system("Now with a system text.")
    expected = fresh_answer(chat, "and?")
    assert say(chat, "and?") == expected
    assert chat.fed_tokens == chat.prompt_tokens


def test_reset_keeps_the_system_text(engine: Engine) -> None:
    chat = ChatSession(engine)
    chat.set_system("S")
    say(chat, "hello")
    chat.reset()
    assert [m.role for m in chat.conversation.messages] == [Role.SYSTEM]
    assert say(chat, "hello")


def test_an_answer_that_is_stopped_is_kept_and_goes_on_being_true(engine: Engine) -> None:
    chat = ChatSession(engine)
    asked = count()
    events = list(chat.say("hello", 50, SAMPLING, stopped=lambda: next(asked) > 4))
    assert events[-1] == Done("length")
    answer = chat.conversation.messages[-1]
    assert answer.role is Role.ASSISTANT
    assert answer.sampled is not None
    assert len(answer.sampled) < 50
    expected = fresh_answer(chat, "more")
    assert say(chat, "more") == expected


def test_reasoning_that_is_stopped_is_not_an_answer(engine: Engine) -> None:
    chat = ChatSession(engine, Conversation((), thinking=Thinking.LOW))
    list(chat.say("hello", 3, SAMPLING))
    assert chat.conversation.messages[-1].sampled is None
    assert fresh_answer(chat, "more") == say(chat, "more")


def test_stopped_before_the_answer(engine: Engine) -> None:
    chat = ChatSession(engine)
    assert list(chat.say("hello", 50, stopped=lambda: True)) == []
    assert chat.conversation.messages == ()


def test_leaving_the_iterator_early(engine: Engine) -> None:
    chat = ChatSession(engine)
    events: Iterator[Event] = chat.say("hello", 50, SAMPLING)
    assert isinstance(next(events), TextDelta | ReasoningDelta)
    events.close()  # type: ignore[attr-defined]
    assert len(chat.conversation.messages) == 2


def test_a_conversation_that_outgrows_the_context(engine: Engine) -> None:
    chat = ChatSession(engine)
    with pytest.raises(ContextLengthError, match="/reset"):
        say(chat, "x" * 700)
    assert chat.conversation.messages == ()
    assert say(chat, "short")


def test_saving_and_loading(engine: Engine, tmp_path: Path) -> None:
    chat = ChatSession(engine)
    say(chat, "hello")
    chat.save(tmp_path / "c")
    other = ChatSession(engine)
    assert other.load(tmp_path / "c") is None
    assert other.conversation == chat.conversation
    assert say(other, "and?") == say(chat, "and?")
    assert other.fed_tokens == chat.fed_tokens < chat.prompt_tokens
    assert render(other.conversation).text == render(chat.conversation).text

    session_path(tmp_path / "c").write_bytes(b"damaged")
    assert "c.session" in str(ChatSession(engine).load(tmp_path / "c"))
    (tmp_path / "c").write_text("{}")
    kept = other.conversation
    with pytest.raises(SnapshotError, match="not a saved conversation"):
        other.load(tmp_path / "c")
    assert other.conversation is kept
    with pytest.raises(SnapshotError, match="cannot be read"):
        other.load(tmp_path / "nothing")
