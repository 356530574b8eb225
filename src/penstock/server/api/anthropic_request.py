"""What Anthropic's Messages API asks: bodies of /v1/messages and /v1/messages/count_tokens, and what they mean.

`cache_control`, `metadata`, signatures and budgets of thinking are accepted and mean nothing here.  The model reasons
only when it is asked to; `output_config.effort` says how hard.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.engine.sampling import Sampling
from penstock.server.api.shared import (
    ALIASES,
    NOT_READ,
    Body,
    Json,
    JsonObject,
    Offer,
    Stops,
    known_tool,
    offer,
    only_text,
    refusal,
    text_as,
    thinking_for,
)


class Text(Body):
    type: Literal["text"]
    text: str


class Reasoning(Body):
    type: Literal["thinking"]
    thinking: str


class Redacted(Body):
    """Reasoning of another server, which cannot be read here."""

    type: Literal["redacted_thinking"]


class ToolUse(Body):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


Texts = Annotated[list[Annotated[Text, BeforeValidator(only_text)]], text_as("text")]


class PlainText(Body):
    type: Literal["text"]
    data: str


class Blocks(Body):
    type: Literal["content"]
    content: Texts


def _readable(source: Any) -> Any:
    kind = source.get("type") if isinstance(source, dict) else None
    if kind in ("base64", "url", "file"):
        raise PydanticCustomError("not_text", NOT_READ, {"kind": "documents other than plain text"})
    return source


class Citations(Body):
    enabled: Literal[False] | None = None


class Document(Body):
    """A text, perhaps with a title and what it is about."""

    type: Literal["document"]
    source: Annotated[Annotated[PlainText | Blocks, Field(discriminator="type")], BeforeValidator(_readable)]
    title: str | None = None
    context: str | None = None
    citations: Citations | None = None

    @property
    def text(self) -> str:
        said = self.source.data if isinstance(self.source, PlainText) else _joined(self.source.content)
        return "\n\n".join(part for part in (self.title, self.context, said) if part)


class SearchResult(Body):
    type: Literal["search_result"]
    source: str
    title: str
    content: Texts

    @property
    def text(self) -> str:
        return "\n\n".join((self.title, self.source, _joined(self.content)))


Told = Annotated[
    Annotated[Text | Document | SearchResult, Field(discriminator="type")], BeforeValidator(only_text)
]


class ToolResult(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[list[Told], text_as("text")] = Field(default_factory=list)


Block = Annotated[
    Annotated[
        Text | Document | SearchResult | Reasoning | Redacted | ToolUse | ToolResult,
        Field(discriminator="type"),
    ],
    BeforeValidator(only_text),
]


class Turn(Body):
    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], text_as("text")]


class Tool(Body):
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: JsonObject


class ToolChoice(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingMode(Body):
    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Body):
    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(Body):
    """What is to be counted: a request that has no answer."""

    model: str = ""
    messages: list[Turn] = Field(min_length=1)
    system: Texts | None = None
    tools: list[Annotated[Tool, known_tool("custom")]] | None = None
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None  # this server calls no other
    tool_choice: ToolChoice | None = None
    thinking: ThinkingMode | None = None
    output_config: OutputConfig | None = None

    def conversation(self) -> Conversation:
        messages = [Message(Role.SYSTEM, _joined(self.system))] if self.system else []
        for number, turn in enumerate(self.messages):
            messages += _messages(turn, f"messages.{number}")
        self._check_results()
        if messages[-1].tool_calls:
            raise refusal("messages", "the last one calls tools, so their results must follow")
        form = self.output_config.format if self.output_config else None
        tools = self._offer()
        return Conversation(
            tuple(messages),
            tools.tools,
            self._thinking(),
            choice=tools.choice,
            response_schema=form.schema_ if form else None,
            schema_field="output_config.format.schema",
            parallel_calls=not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
        )

    def _check_results(self) -> None:
        """Every result must answer a call that was made before it."""
        calls: set[str] = set()
        for number, turn in enumerate(self.messages):
            for place, block in enumerate(turn.content):
                if isinstance(block, ToolUse):
                    calls.add(block.id)
                elif isinstance(block, ToolResult) and block.tool_use_id not in calls:
                    field = f"messages.{number}.content.{place}.tool_use_id"
                    raise refusal(field, f"{block.tool_use_id!r} answers no tool_use block before it")

    def rendering(self) -> dict[str, bool]:
        """An assistant's message at the end is the beginning of the answer."""
        return {"forced": self._offer().force, "continues": self.messages[-1].role == "assistant"}

    def _offer(self) -> Offer:
        choice = self.tool_choice or ToolChoice(type="auto")
        if choice.type == "tool" and choice.name is None:
            raise refusal("tool_choice.name", "missing")
        return offer(
            [_function(tool) for tool in self.tools or []],
            choice.type if choice.type in ("auto", "none") else "required",
            [choice.name] if choice.type == "tool" and choice.name is not None else None,
        )

    def _thinking(self) -> Thinking:
        mode = self.thinking or ThinkingMode(type="enabled" if ALIASES.get(self.model) else "disabled")
        effort = self.output_config.effort if self.output_config else None
        level = thinking_for(effort, "output_config.effort", Thinking.HIGH)
        return Thinking.OFF if mode.type == "disabled" else level


class MessagesRequest(CountRequest):
    max_tokens: int = Field(ge=1)
    stop_sequences: Stops | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, ge=0, lt=1 << 31)

    def sampling(self) -> Sampling:
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        known = {name: value for name, value in given.items() if value is not None}
        return Sampling(stop=tuple(self.stop_sequences or ()), **known)  # type: ignore[arg-type]


def _messages(turn: Turn, field: str) -> list[Message]:
    """An assistant's blocks are one message; a user's texts and results are one each."""
    if turn.role == "assistant":
        return [_assistant(turn, field)]
    messages = []
    for number, block in enumerate(turn.content):
        match block:
            case Text() | Document() | SearchResult():
                messages.append(Message(Role(turn.role), block.text))
            case ToolResult() if turn.role == "user":
                result = "\n\n".join(part.text for part in block.content)
                messages.append(Message(Role.TOOL, result, tool_call_id=call_id(block.tool_use_id)))
            case _:
                raise refusal(
                    f"{field}.content.{number}", f"a {block.type} block is out of place in role {turn.role}"
                )
    return messages or [Message(Role(turn.role))]


def _assistant(turn: Turn, field: str) -> Message:
    texts, reasoning, calls = [], [], []
    for number, block in enumerate(turn.content):
        match block:
            case Text():
                texts.append(block.text)
            case Reasoning():
                reasoning.append(block.thinking)
            case ToolUse():
                calls.append(ToolCall(call_id(block.id), block.name, json.dumps(block.input)))
            case ToolResult() | Document() | SearchResult():
                raise refusal(
                    f"{field}.content.{number}", f"a {block.type} block is out of place in role assistant"
                )
            case Redacted():
                pass
    return Message(Role.ASSISTANT, "".join(texts), "".join(reasoning) or None, tuple(calls))


def _function(tool: Tool) -> Json:
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "parameters": tool.input_schema}


def _joined(blocks: list[Text]) -> str:
    return "\n".join(block.text for block in blocks)


# The engine's calls have ids of their own; here they go by the prefix that this API's clients are used to.


def call_id(tool_use_id: str) -> str:
    return tool_use_id.replace("toolu_", "call_", 1) if tool_use_id.startswith("toolu_") else tool_use_id


def tool_use_id(call_id: str) -> str:
    return call_id.replace("call_", "toolu_", 1)
