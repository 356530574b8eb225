"""What is asked of /v1/chat/completions, in OpenAI's words with DeepSeek's additions (`thinking`, `prefix`, …)."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.server.api.custom_tools import AnyText, WrappedGrammar, as_arguments, as_function, grammar_of
from penstock.server.api.shared import (
    ALIASES,
    EFFORTS,
    Json,
    Offer,
    SamplingFields,
    known_tool,
    offer,
    only_text,
    refusal,
)

UNSUPPORTED: Final = {
    "functions": "send them as tools",
    "function_call": "send it as tool_choice",
    "web_search_options": "this server does not search the web",
    "audio": "this model writes text only",
}


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


def _as_json(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


class TextPart(_Strict):
    type: Literal["text"]
    text: str


class RefusalPart(_Strict):
    type: Literal["refusal"]
    refusal: str


ContentPart = Annotated[
    Annotated[TextPart | RefusalPart, Field(discriminator="type")], BeforeValidator(only_text)
]


class CalledFunction(_Strict):
    """`arguments` is JSON, or the object that it stands for."""

    name: str
    arguments: Annotated[str | None, BeforeValidator(_as_json)] = None


class CalledCustom(_Strict):
    name: str
    input: str


class CallInHistory(_Strict):
    id: str | None = None
    function: CalledFunction | None = None
    custom: CalledCustom | None = None


class Function(BaseModel):
    """Shown to the model as it is, with whatever else it has."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: Annotated[str, Field(min_length=1)]


class FunctionTool(_Strict):
    type: Literal["function"]
    function: Function


class Custom(_Strict):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    format: Annotated[AnyText | WrappedGrammar, Field(discriminator="type")] | None = None


class CustomTool(_Strict):
    type: Literal["custom"]
    custom: Custom


Tool = Annotated[
    Annotated[FunctionTool | CustomTool, Field(discriminator="type")], known_tool("function", "custom")
]


class ChatMessage(_Strict):
    """`reasoning` is another name of `reasoning_content`.  `prefix`: the answer goes on with this message, the last.
    `task` and a developer's `tools` are DeepSeek's own."""

    role: Literal["system", "developer", "user", "assistant", "tool", "latest_reminder"]
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallInHistory] | None = None
    tool_call_id: str | None = None
    prefix: bool | None = None
    tools: list[Tool] | None = None
    task: Literal["action", "query", "authority", "domain", "title", "read_url"] | None = None


class Chosen(_Strict):
    name: str


class NamedTool(_Strict):
    type: Literal["function", "custom"]
    function: Chosen | None = None
    custom: Chosen | None = None

    def chosen(self, field: str) -> str:
        named = self.function if self.type == "function" else self.custom
        if named is None:
            raise refusal(f"{field}.{self.type}", "missing")
        return named.name


class AllowedTools(_Strict):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedChoice(_Strict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Annotated[NamedTool | AllowedChoice, Field(discriminator="type")]


class TemplateOptions(_Strict):
    """Those that other servers take in `chat_template_kwargs`."""

    thinking: bool | None = None
    enable_thinking: bool | None = None
    drop_thinking: bool | None = None


class JsonSchema(_Strict):
    schema_: Json | None = Field(None, alias="schema")
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
    drop_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions = Field(default_factory=TemplateOptions)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    audio: Any = None
    modalities: list[str] | None = None
    return_progress: bool | None = None  # llama.cpp's: chunks with `prompt_progress` while the prompt is read

    @model_validator(mode="after")
    def _can_be_done(self) -> "ChatRequest":
        for field, why in UNSUPPORTED.items():
            if getattr(self, field):
                raise refusal(field, f"not supported: {why}")
        if any(kind != "text" for kind in self.modalities or ()):
            raise refusal("modalities", "not supported: this model writes text only")
        return self

    def rendering(self) -> dict[str, bool]:
        """The answer may have to be a call, or to go on with the last message."""
        for index, message in enumerate(self.messages):
            if message.prefix and (index < len(self.messages) - 1 or message.role != "assistant"):
                raise refusal(
                    f"messages[{index}].prefix", "only the last message, an assistant's, can be one"
                )
        return {"forced": self.offer().force, "continues": bool(self.messages[-1].prefix)}

    def offer(self) -> Offer:
        functions = [_function(tool) for tool in self.tools or ()]
        every = [*functions, *(_function(tool) for message in self.messages for tool in message.tools or ())]
        match self.tool_choice:
            case None:
                chosen = offer(every, "auto")
            case str(choice):
                chosen = offer(every, choice)
            case NamedTool() as tool:
                chosen = offer(every, "required", [tool.chosen("tool_choice")])
            case AllowedChoice(allowed_tools=AllowedTools(mode=mode, tools=tools)):
                place = "tool_choice.allowed_tools.tools[{}]"
                names = [tool.chosen(place.format(number)) for number, tool in enumerate(tools)]
                chosen = offer(every, mode, names)
        return chosen._replace(tools=tuple(functions))  # those of a message are told there

    @property
    def customs(self) -> dict[str, Custom]:
        """Custom tools, by name."""
        return {tool.custom.name: tool.custom for tool in self.tools or () if isinstance(tool, CustomTool)}

    def conversation(self) -> Conversation:
        form = self.response_format or ResponseFormat(type="text")
        asked = JsonSchema(schema=None)
        if form.type == "json_schema":
            if form.json_schema is None or form.json_schema.schema_ is None:
                missing = "json_schema" if form.json_schema is None else "json_schema.schema"
                raise refusal(f"response_format.{missing}", "missing")
            asked = form.json_schema
        offered = self.offer()
        grammars = {name: grammar_of(custom.format) for name, custom in self.customs.items()}
        wishes = (self.drop_thinking, self.chat_template_kwargs.drop_thinking)
        return Conversation(
            tuple(self._messages()),
            tools=offered.tools,
            choice=offered.choice,
            thinking=self._thinking(),
            drop_thinking=next((wish for wish in wishes if wish is not None), None),
            response_schema=asked.schema_,
            json_only=form.type != "text" and (asked.schema_ is None or asked.strict is False),
            parallel_calls=self.parallel_tool_calls is not False,
            grammars={name: grammar for name, grammar in grammars.items() if grammar is not None},
        )

    def _thinking(self) -> Thinking:
        given = self.thinking.type == "enabled" if isinstance(self.thinking, ThinkingMode) else self.thinking
        others = self.chat_template_kwargs
        asked = next((a for a in (given, others.thinking, others.enable_thinking) if a is not None), None)
        effort = EFFORTS[self.reasoning_effort] if self.reasoning_effort else None
        if asked is False or self.think is False or effort is Thinking.OFF:
            return Thinking.OFF
        if effort is not None:
            return effort
        return Thinking.HIGH if asked or self.think or ALIASES.get(self.model or "") else Thinking.OFF

    def _messages(self) -> Iterator[Message]:
        for index, message in enumerate(self.messages):
            calls = message.tool_calls or ()
            if calls and message.role != "assistant":
                raise refusal(f"messages[{index}].tool_calls", "only an assistant calls tools")
            if message.tools and message.role != "developer":
                raise refusal(
                    f"messages[{index}].tools", "only a developer's message brings tools of its own"
                )
            if message.task and message.role not in ("user", "developer"):
                raise refusal(f"messages[{index}].task", "only a user's or developer's message has one")
            reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
            yield Message(
                Role(message.role),
                _text(message),
                reasoning=reasoning,
                tool_calls=tuple(
                    _call(call, f"messages[{index}].tool_calls[{number}]")
                    for number, call in enumerate(calls)
                ),
                tool_call_id=message.tool_call_id,
                tools=tuple(_function(tool) for tool in message.tools or ()),
                task=message.task,
            )


def _call(call: CallInHistory, field: str) -> ToolCall:
    if call.function is not None:
        return ToolCall(call.id or "", call.function.name, call.function.arguments or "")
    if call.custom is not None:
        return ToolCall(call.id or "", call.custom.name, as_arguments(call.custom.input))
    raise refusal(f"{field}.function", "missing")


def _function(tool: Tool) -> Json:
    if isinstance(tool, CustomTool):
        custom = tool.custom
        return as_function(custom.name, custom.description, grammar_of(custom.format))
    return tool.function.model_dump(exclude_unset=True)


def _text(message: ChatMessage) -> str:
    """The text of a message.  Its parts are lines of their own, as several files or remarks would be; those of a
    tool's result stand apart by an empty line, as DeepSeek's encoder writes them."""
    if not isinstance(message.content, list):
        return message.content or ""
    texts = [part.text if isinstance(part, TextPart) else part.refusal for part in message.content]
    return ("\n\n" if message.role == "tool" else "\n").join(texts)
