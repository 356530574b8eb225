"""Running a parser over text, for tests."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from penstock.chat.events import Event, coalesced
from penstock.chat.messages import Message
from penstock.chat.parse import Parser
from penstock.chat.turn import Turn

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
