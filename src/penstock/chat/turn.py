"""A turn put together again from its events."""

from collections.abc import Iterable, Sequence

from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta, ToolCallFinished
from penstock.chat.messages import Message, Role, ToolCall


class Turn:
    """Collects events into the message that they tell of."""

    def __init__(self, thinking: bool = False):
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[ToolCall] = []
        self.finish_reason: str | None = None
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
                case Done(reason):
                    self.finish_reason = reason
                case _:
                    pass

    def message(self, sampled: Sequence[int] | None = None) -> Message:
        """The assistant's message.  `sampled`: the turn's tokens, if they are to be replayed as they are."""
        return Message(
            Role.ASSISTANT,
            "".join(self.content),
            reasoning="".join(self.reasoning) if self._thinking else None,
            tool_calls=tuple(self.calls),
            sampled=None if sampled is None else tuple(sampled),
        )
