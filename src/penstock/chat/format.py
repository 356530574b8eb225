"""The interface of a chat format: how a family of models writes conversations.

Everything else in this room, and the server above it, speaks of messages, pieces and events; what a format's markers
are is known to its own folder alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

from penstock.chat.events import Event
from penstock.chat.messages import Conversation, Message
from penstock.chat.prompt import Piece, Prompt
from penstock.engine.constraint import Constraint, Constraints


class TurnParser(Protocol):
    """Reads what the model writes in one turn.  The events, joined, do not depend on how the text is cut into pieces.

    finished  nothing that is pushed from now on matters: generation may end
    """

    finished: bool

    def push(self, text: str, special: bool = False) -> list[Event]:
        """Events of what is certain now.  special: `text` is one marker token's."""

    def finish(self, reason: str) -> list[Event]:
        """The rest, and `Done`; nothing if that has been.  reason: "stop" (a token that ends turns) or "length"."""


class ChatFormat(ABC):
    """One format.  `name` is for people; `end_reasoning` is the marker between reasoning and answer."""

    name: ClassVar[str]
    end_reasoning: ClassVar[str]

    @abstractmethod
    def render(self, conversation: Conversation, continues: bool = False, forced: bool = False) -> Prompt:
        """The prompt for the assistant's next turn.  continues, forced: see `Prompt`."""

    @abstractmethod
    def said(self, message: Message) -> tuple[Piece, ...]:
        """What an assistant's message says, as a later prompt repeats it while it keeps the reasoning."""

    @abstractmethod
    def parser(self, conversation: Conversation, prompt: Prompt, stop: Sequence[str] = ()) -> TurnParser:
        """The reader of the turn that follows `prompt`.  stop: strings that end the answer; they mean nothing in
        reasoning and tool calls."""

    @abstractmethod
    def constraint(
        self, constraints: Constraints, conversation: Conversation, prompt: Prompt
    ) -> Constraint | None:
        """What holds the next turn to its grammar; None if it is free.  OptionError that names the field if a schema
        cannot be used.  Compiling may take a second."""
