"""What a model's turn turns out to contain, piece by piece."""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.chat.messages import ToolCall


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A call begins.  It counts only once its `ToolCallFinished` comes: one that a limit cuts off never does, and one
    that turns out to be none comes as `TextDelta` instead."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """More of a call's arguments; the fragments of one call joined are a JSON object."""

    index: int
    json_fragment: str


@dataclass(frozen=True, slots=True)
class ToolCallFinished:
    """A call is complete.  These come when the whole block has ended, since `call.raw` is the whole block."""

    index: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class Done:
    """The turn is over: "stop", "length" or "tool_calls"."""

    finish_reason: str


Event = ReasoningDelta | TextDelta | ToolCallStarted | ArgumentsDelta | ToolCallFinished | Done


def coalesced(events: Iterable[Event]) -> list[Event]:
    """The same events with neighbouring deltas of one kind joined: independent of how the stream was cut."""
    result: list[Event] = []
    for event in events:
        match (result[-1] if result else None, event):
            case (ReasoningDelta(before), ReasoningDelta(text)):
                result[-1] = ReasoningDelta(before + text)
            case (TextDelta(before), TextDelta(text)):
                result[-1] = TextDelta(before + text)
            case (ArgumentsDelta(number, before), ArgumentsDelta(index, fragment)) if number == index:
                result[-1] = ArgumentsDelta(index, before + fragment)
            case _:
                result.append(event)
    return result
