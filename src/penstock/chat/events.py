"""What a model's turn contains, piece by piece, and the message that the pieces make."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.chat.messages import Message, Role, ToolCall


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
    """The turn is over: "stop", "length" or "tool_calls".  `stop_string`: which one has ended it, if one has."""

    finish_reason: str
    stop_string: str | None = None


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


class Turn:
    """Collects events into the message that they tell of."""

    def __init__(self, thinking: bool = False):
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[ToolCall] = []
        self.finish_reason: str | None = None
        self.stop_string: str | None = None
        self._thinking = thinking

    def add(self, events: Iterable[Event]) -> None:
        for event in events:
            match event:
                case ReasoningDelta(text):
                    self.reasoning.append(text)
                case TextDelta(text):
                    self.content.append(text)
                case ToolCallFinished(_, call):
                    self.calls.append(call)
                case Done(reason, stop_string):
                    self.finish_reason, self.stop_string = reason, stop_string
                case _:
                    pass

    def message(self, sampled: Sequence[int] | None = None) -> Message:
        """The assistant's message.  `sampled`: the turn's tokens, if they are to be replayed as they are."""
        return Message(
            Role.ASSISTANT,
            "".join(self.content),
            reasoning="".join(self.reasoning) if self._thinking or self.reasoning else None,
            tool_calls=tuple(self.calls),
            sampled=None if sampled is None else tuple(sampled),
        )
