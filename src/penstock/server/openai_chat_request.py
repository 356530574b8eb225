"""A request for a chat completion, and the conversation that it means."""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.server.errors import ApiError
from penstock.server.models import ALIASES
from penstock.server.sampling_fields import SamplingFields

ROLES: Final = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,  # OpenAI's newer word for it; DeepSeek's own developer role is something else
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}
EFFORTS: Final = {
    "none": Thinking.OFF,
    "minimal": Thinking.LOW,
    "low": Thinking.LOW,
    "medium": Thinking.HIGH,
    "high": Thinking.HIGH,
    "xhigh": Thinking.HIGH,
    "max": Thinking.MAX,
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class ContentPart(_Strict):
    type: str
    text: str | None = None


class CalledFunction(_Strict):
    name: str
    arguments: str | None = None


class CallInHistory(_Strict):
    id: str | None = None
    function: CalledFunction


class ChatMessage(_Strict):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallInHistory] | None = None
    tool_call_id: str | None = None


class Function(BaseModel):
    """Shown to the model as it is, with whatever else it has."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: Annotated[str, Field(min_length=1)]


class Tool(_Strict):
    type: Literal["function"]
    function: Function


class ChosenFunction(_Strict):
    name: str


class ToolChoice(_Strict):
    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(_Strict):
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ThinkingMode(_Strict):
    type: Literal["enabled", "disabled"]


class ChatRequest(SamplingFields):
    """Thinking is off unless it is asked for: by the model's name `deepseek-reasoner`, by `thinking`, `think` or
    `reasoning_effort`.  Those fields count more than the name, and "off" more than an effort."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    thinking: bool | ThinkingMode | None = None
    think: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def forces_call(self) -> bool:
        """The answer must be a call of a tool."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, ToolChoice)

    def conversation(self) -> Conversation:
        form = self.response_format or ResponseFormat(type="text")
        asked = (
            form.json_schema if form.type == "json_schema" and form.json_schema else JsonSchema(schema=None)
        )
        return Conversation(
            tuple(self._messages()),
            tools=tuple(self._tools()),
            thinking=self._thinking(),
            response_schema=asked.schema_,
            json_only=form.type != "text" and (asked.schema_ is None or asked.strict is False),
            parallel_calls=self.parallel_tool_calls is not False,
        )

    def _thinking(self) -> Thinking:
        asked = self.thinking.type == "enabled" if isinstance(self.thinking, ThinkingMode) else self.thinking
        effort = EFFORTS[self.reasoning_effort] if self.reasoning_effort else None
        if asked is False or self.think is False or effort is Thinking.OFF:
            return Thinking.OFF
        if effort is not None:
            return effort
        return Thinking.HIGH if asked or self.think or ALIASES.get(self.model or "") else Thinking.OFF

    def _tools(self) -> Iterator[dict[str, Any]]:
        """Those that may be called now."""
        functions = [tool.function.model_dump(exclude_unset=True) for tool in self.tools or ()]
        if isinstance(self.tool_choice, ToolChoice):
            wanted = self.tool_choice.function.name
            functions = [function for function in functions if function["name"] == wanted]
            if not functions:
                raise _refusal("tool_choice", f"{wanted!r} is not one of the tools")
        if self.tool_choice == "required" and not functions:
            raise _refusal("tool_choice", "a call is required, but there are no tools")
        if self.tool_choice != "none":
            yield from functions

    def _messages(self) -> Iterator[Message]:
        for index, message in enumerate(self.messages):
            calls = message.tool_calls or ()
            if calls and message.role != "assistant":
                raise _refusal(f"messages.{index}.tool_calls", "only an assistant calls tools")
            yield Message(
                ROLES[message.role],
                _text(message, index),
                reasoning=message.reasoning_content,
                tool_calls=tuple(
                    ToolCall(call.id or "", call.function.name, call.function.arguments or "")
                    for call in calls
                ),
                tool_call_id=message.tool_call_id,
            )


def _text(message: ChatMessage, index: int) -> str:
    """The text of a message; its parts are lines of their own, as several files or remarks would be."""
    if not isinstance(message.content, list):
        return message.content or ""
    for place, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise _refusal(
                f"messages.{index}.content.{place}",
                f"a part of type {part.type!r} cannot be read, only text can",
            )
    return "\n".join(part.text or "" for part in message.content)


def _refusal(field: str, why: str) -> ApiError:
    return ApiError(400, f"{field}: {why}", code="invalid_value", param=field)
