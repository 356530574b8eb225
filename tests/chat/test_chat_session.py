"""Conversations on an engine: nothing is read twice that need not be."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock import Engine
from penstock.chat.chat_session import ChatSession, Listener, Stopped, session_path
from penstock.chat.deepseek_v4.render import render
from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta
from penstock.chat.messages import Conversation, Role, Thinking
from penstock.engine.progress import PrefillProgress
from penstock.engine.sampling import Sampling
from penstock.engine.steps import Step
from penstock.errors import ContextLengthError, OptionError, SnapshotError
from penstock.weights.synth import synth

SAMPLING = Sampling(seed=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    path = tmp_path_factory.mktemp("chat") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), mix="q2")
    return Engine(path, max_rewind=8, context=600)


class Impatient(Listener):
    """Stops an answer after so many tokens; none: while the prompt is read."""

    def __init__(self, tokens: int = 0):
        self.left = tokens

    def prefill(self, _: PrefillProgress) -> None:
        if self.left == 0:
            raise Stopped

    def token(self, _: Step) -> None:
        self.left -= 1

    def stopped(self) -> bool:
        return self.left <= 0


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
    events = list(chat.say("hello", 50, SAMPLING, Impatient(tokens=4)))
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
    assert list(chat.say("hello", 50, listener=Impatient())) == []
    assert chat.conversation.messages == ()


def test_stopped_in_the_middle_of_a_long_prompt(engine: Engine) -> None:
    """The next turn goes on from what was read, and gives what it gives without the interruption."""
    chat, text = ChatSession(engine), "x" * 300

    class Halfway(Listener):
        def prefill(self, progress: PrefillProgress) -> None:
            if progress.done > progress.total // 2:
                raise Stopped

    assert list(chat.say(text, 50, SAMPLING, Halfway())) == []
    assert say(chat, text) == fresh_answer(ChatSession(engine), text)


@pytest.mark.parametrize("thinking", [Thinking.OFF, Thinking.LOW])
def test_progress_counts_what_was_read_before(engine: Engine, thinking: Thinking) -> None:
    heard: list[PrefillProgress] = []

    class Curious(Listener):
        def prefill(self, progress: PrefillProgress) -> None:
            heard.append(progress)

    chat = ChatSession(engine, Conversation((), thinking=thinking))
    list(chat.say("x" * 200, 5, SAMPLING, Curious()))
    assert [p.done for p in heard] == sorted(p.done for p in heard)
    assert heard[-1].done == heard[-1].total == chat.prompt_tokens
    heard.clear()
    list(chat.say("and?", 5, SAMPLING, Curious()))
    assert heard[0].cached == chat.prompt_tokens - chat.fed_tokens > 200
    assert heard[-1].done == chat.prompt_tokens


def test_a_question_answered_once_more(engine: Engine) -> None:
    chat = ChatSession(engine)
    say(chat, "hello")
    say(chat, "and?")
    kept = chat.conversation.messages
    again = list(chat.say_again(20, Sampling(seed=2)))
    assert again != say(ChatSession(engine, replace(chat.conversation, messages=kept[:2])), "and?")
    assert [m.role for m in chat.conversation.messages] == [m.role for m in kept]
    assert chat.conversation.messages[:-1] == kept[:-1]
    kept = chat.conversation.messages
    assert list(chat.say_again(20, listener=Impatient())) == []
    assert chat.conversation.messages == kept


def test_undo_takes_turns_back_one_by_one(engine: Engine) -> None:
    chat = ChatSession(engine)
    chat.set_system("S")
    say(chat, "hello")
    before = chat.conversation
    say(chat, "and?")
    assert chat.undo() == "and?"
    assert chat.conversation == before
    assert say(chat, "then?") == fresh_answer(ChatSession(engine, before), "then?")
    assert [chat.undo(), chat.undo()] == ["then?", "hello"]
    with pytest.raises(OptionError, match="nothing has been asked yet"):
        chat.undo()


def test_what_is_used_of_the_context(engine: Engine) -> None:
    chat = ChatSession(engine)
    assert chat.used_tokens() == 0
    say(chat, "hello")
    assert chat.prompt_tokens < chat.used_tokens() <= chat.prompt_tokens + 20 + 5


def test_leaving_the_iterator_early(engine: Engine) -> None:
    chat = ChatSession(engine)
    events: Iterator[Event] = chat.say("hello", 50, SAMPLING)
    assert isinstance(next(events), TextDelta | ReasoningDelta)
    events.close()  # type: ignore[attr-defined]
    assert len(chat.conversation.messages) == 2


def test_a_conversation_that_outgrows_the_context(engine: Engine) -> None:
    chat = ChatSession(engine)
    with pytest.raises(ContextLengthError, match="/clear"):
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
