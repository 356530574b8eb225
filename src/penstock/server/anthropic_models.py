"""A request to Anthropic's Messages API, and the conversation that it means.

`cache_control`, `metadata`, signatures and budgets of thinking are accepted and mean nothing here.  The model reasons
only when it is asked to; `output_config.effort` says how hard.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.chat.tool_text import to_json
from penstock.engine.sampling import Sampling
from penstock.server.models import ALIASES
from penstock.server.request_fields import (
    Body,
    JsonObject,
    Offer,
    check_results,
    offer,
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


Texts = Annotated[list[Text], text_as("text")]


class ToolResult(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = Field(default_factory=list)


Block = Annotated[Text | Reasoning | Redacted | ToolUse | ToolResult, Field(discriminator="type")]


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
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingMode | None = None
    output_config: OutputConfig | None = None

    def conversation(self) -> Conversation:
        messages = [Message(Role.SYSTEM, _joined(self.system))] if self.system else []
        for number, turn in enumerate(self.messages):
            messages += _messages(turn, f"messages.{number}")
        check_results(messages, "messages")
        if messages[-1].tool_calls:
            raise refusal("messages", "the last one calls tools, so their results must follow")
        form = self.output_config.format if self.output_config else None
        return Conversation(
            tuple(messages),
            self._offer().tools,
            self._thinking(),
            response_schema=form.schema_ if form else None,
            schema_field="output_config.format.schema",
            parallel_calls=not (self.tool_choice and self.tool_choice.disable_parallel_tool_use),
        )

    def rendering(self) -> dict[str, bool]:
        """An assistant's message at the end is the beginning of the answer."""
        return {"force_call": self._offer().force, "continue_final": self.messages[-1].role == "assistant"}

    def _offer(self) -> Offer:
        choice = self.tool_choice or ToolChoice(type="auto")
        if choice.type == "tool" and choice.name is None:
            raise refusal("tool_choice.name", "missing")
        return offer(
            [_function(tool) for tool in self.tools or []],
            choice.type if choice.type in ("auto", "none") else "required",
            choice.name if choice.type == "tool" else None,
        )

    def _thinking(self) -> Thinking:
        mode = self.thinking or ThinkingMode(type="enabled" if ALIASES.get(self.model) else "disabled")
        effort = self.output_config.effort if self.output_config else None
        level = thinking_for(effort, "output_config.effort", Thinking.HIGH)
        return Thinking.OFF if mode.type == "disabled" else level


class MessagesRequest(CountRequest):
    max_tokens: int = Field(ge=1)
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, ge=0, lt=1 << 31)

    def sampling(self) -> Sampling:
        """Without the stop sequences, which end the answer but neither reasoning nor calls."""
        if not all(self.stop_sequences or []):
            raise refusal("stop_sequences", "one of them is empty")
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return Sampling(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _messages(turn: Turn, field: str) -> list[Message]:
    """An assistant's blocks are one message; a user's texts and results are one each."""
    if turn.role == "assistant":
        return [_assistant(turn, field)]
    messages = []
    for number, block in enumerate(turn.content):
        match block:
            case Text():
                messages.append(Message(Role(turn.role), block.text))
            case ToolResult() if turn.role == "user":
                messages.append(
                    Message(Role.TOOL, _joined(block.content), tool_call_id=call_id(block.tool_use_id))
                )
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
                calls.append(ToolCall(call_id(block.id), block.name, to_json(block.input)))
            case ToolResult():
                raise refusal(
                    f"{field}.content.{number}", "a tool_result block is out of place in role assistant"
                )
            case Redacted():
                pass
    return Message(Role.ASSISTANT, "".join(texts), "".join(reasoning) or None, tuple(calls))


def _function(tool: Tool) -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "parameters": tool.input_schema}


def _joined(blocks: list[Text]) -> str:
    return "\n".join(block.text for block in blocks)


# The engine's calls have ids of their own; here they go by the prefix that this API's clients are used to.


def call_id(tool_use_id: str) -> str:
    return tool_use_id.replace("toolu_", "call_", 1) if tool_use_id.startswith("toolu_") else tool_use_id


def tool_use_id(call_id: str) -> str:
    return call_id.replace("call_", "toolu_", 1)
