"""What a conversation is made of, before it becomes text."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from penstock.errors import OptionError


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    REMINDER = "latest_reminder"


class Thinking(StrEnum):
    """Whether and how hard the model reasons before it answers."""

    OFF = "off"
    LOW = "low"
    HIGH = "high"
    MAX = "max"


THINKING_WORDS: Final = ("off", "on", "low", "high", "max")  # that people may use


def parse_thinking(word: str) -> Thinking:
    """ "on" is the effort that adds nothing to the prompt in any release."""
    if word not in THINKING_WORDS:
        raise OptionError(f"think is {word!r}, expected one of {', '.join(THINKING_WORDS)}")
    return Thinking.LOW if word == "on" else Thinking(word)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant made.  `arguments` is JSON text.  `raw` is the exact sampled text of the whole
    block it came from, line feeds before it included, if known: replayed as it was, markers as markers, so that
    the next prompt has the same tokens.  It must come from the model, never from a client."""

    id: str
    name: str
    arguments: str
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """What a text must be.  `syntax` is "lark" or "regex"."""

    syntax: str
    definition: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn.  `reasoning` and `tool_calls` belong to assistants, `tool_call_id` to tool results, `tools` (more on
    offer) to developers, `task` (a job that the model has a marker for) to developers and users.

    `sampled`: the ids of a whole assistant turn as the model chose them, without the EOS.  Text alone cannot say
    which of several spellings in tokens it was; with them the next prompt repeats exactly what a session holds.
    They are used while the turn is rendered the way it was generated (with its reasoning, or without any).
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    sampled: tuple[int, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    task: str | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, the tools on offer (JSON-schema function objects), and how the next turn is to be generated.
    `choice`: which of the tools may be called in it, all if None; what is offered stays in the prompt whatever is
    chosen, so that a choice costs nothing of what a session has read.
    `json_only` asks for any JSON object; `response_schema` for one of a certain form (with both, the model is told
    the form and held to any object); `schema_field` is what the client calls that schema.  Without `parallel_calls`
    a turn calls one tool.  `encoding`: which release of the chat format, where there are several; the model's own if
    empty.  `drop_thinking`: leave out the reasoning of turns that are over; if None, as the format does.
    `grammars`: of the one text that a tool takes, by the tool's name."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    thinking: Thinking = Thinking.OFF
    encoding: str = ""
    response_schema: Mapping[str, Any] | None = None
    json_only: bool = False
    schema_field: str = field(default="response_format.json_schema.schema", compare=False)
    parallel_calls: bool = True
    choice: tuple[str, ...] | None = None
    drop_thinking: bool | None = None
    grammars: Mapping[str, TextGrammar] = field(default_factory=dict)

    @property
    def all_tools(self) -> tuple[Mapping[str, Any], ...]:
        """Those of the conversation, and those that its messages bring."""
        return (*self.tools, *(tool for message in self.messages for tool in message.tools))

    @property
    def functions(self) -> list[Mapping[str, Any]]:
        """The tools that may be called, without the wrapper that APIs put around them."""
        functions = [tool.get("function", tool) for tool in self.all_tools]
        return [f for f in functions if self.choice is None or f.get("name") in self.choice]

    @property
    def constrained(self) -> bool:
        """Whether the next turn has a form that it is held to."""
        return bool(self.all_tools) or self.json_only or self.response_schema is not None


def question(user: str, system: str = "", thinking: Thinking = Thinking.OFF) -> Conversation:
    """A conversation of one question."""
    return Conversation((Message(Role.SYSTEM, system), Message(Role.USER, user)), thinking=thinking)
