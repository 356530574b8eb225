"""Running a parser over text, for tests."""

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from penstock.chat.deepseek_v4 import DeepSeekV4Format
from penstock.chat.deepseek_v4.parse import Parser
from penstock.chat.driver import ChatDriver, Reply
from penstock.chat.events import Event, Turn, coalesced
from penstock.chat.messages import Conversation, Message, Role, Thinking
from penstock.chat.prompt import Prompt
from penstock.engine.engine import Engine
from penstock.engine.steps import Step
from penstock.tokenizer import Tokenizer

D = "｜DSML｜"


def parser(**options: Any) -> Parser:
    """A parser with tools whose calls are named c0, c1, …"""
    numbers = count()
    return Parser(**{"thinking": False, "tools": True, "new_id": lambda: f"c{next(numbers)}", **options})


def events_of(chunks: str | Sequence[str], reason: str = "stop", **options: Any) -> list[Event]:
    """Coalesced events of a whole turn."""
    reader = parser(**options)
    events: list[Event] = []
    for chunk in [chunks] if isinstance(chunks, str) else chunks:
        events += reader.push(chunk)
    return coalesced([*events, *reader.finish(reason)])


def message_of(text: str, reason: str = "stop", **options: Any) -> tuple[Message, str | None]:
    """The message that a turn gives, and its finish reason."""
    turn = Turn(thinking=options.get("thinking", False))
    turn.add(events_of(text, reason, **options))
    return turn.message(), turn.finish_reason


class _Numbered(DeepSeekV4Format):
    """The format, with a parser whose calls are named c0, c1, …"""

    def parser(self, conversation: Conversation, prompt: Prompt, stop: Sequence[str] = ()) -> Parser:
        how = {"continuing": prompt.continues, "forced": prompt.forced, "stop": stop}
        return parser(thinking=prompt.thinking, tools=bool(conversation.functions), **how)


def reply_for(
    tokenizer: Tokenizer, *, thinking: bool = False, tools: bool = True, forced: bool = False
) -> Reply:
    """The reply to a question; there is no engine, tokens come from the test."""
    asked = Conversation(
        (Message(Role.USER, "q"),),
        ({"name": "f"},) if tools else (),
        Thinking.LOW if thinking else Thinking.OFF,
    )
    engine = SimpleNamespace(tokenizer=tokenizer, config=SimpleNamespace(eos_ids=tokenizer.eos_ids))
    return ChatDriver(cast(Engine, engine), format=_Numbered()).reply(asked, forced=forced)


def push_all(reply: Reply, tokenizer: Tokenizer, ids: Sequence[int]) -> list[Event]:
    """Events of these tokens as an engine would sample them, and then the end."""
    decoder = tokenizer.stream()
    events: list[Event] = []
    for token in (*ids, tokenizer.eos_ids[0]):
        if not reply.finished:
            ends = token in tokenizer.eos_ids
            text = decoder.finish() if ends else decoder.push(token)
            events += reply.push(Step(token, 0.0, text, finish_reason="stop" if ends else None)).events
    return events
