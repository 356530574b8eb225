"""POST /v1/chat/completions, in OpenAI's words with DeepSeek's additions (`reasoning_content`, `thinking`)."""

import json
from collections.abc import AsyncGenerator, Container, Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from penstock.chat.driver import Token
from penstock.chat.events import (
    ArgumentsDelta,
    Done,
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
    coalesced,
)
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.engine.progress import PrefillProgress
from penstock.engine.steps import Step
from penstock.server.api.custom_tools import (
    AnyText,
    WrappedGrammar,
    as_arguments,
    as_function,
    as_input,
    grammar_of,
)
from penstock.server.api.openai import Choices, finite, token_name
from penstock.server.api.shared import (
    ALIASES,
    EFFORTS,
    Json,
    Offer,
    SamplingFields,
    offer,
    only_text,
    refusal,
)
from penstock.server.http.bodies import BodyRoute
from penstock.server.service import Service, service_of
from penstock.server.usage import Usage, timings
from penstock.tokenizer import Tokenizer

router = APIRouter(route_class=BodyRoute)


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


Tool = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


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
    return_progress: bool | None = None  # llama.cpp's: chunks with `prompt_progress` while the prompt is read

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


class ChatChoice:
    """One of the answers to a request."""

    def __init__(self, service: Service, body: ChatRequest, conversation: Conversation, number: int):
        self.usage, self.begun = Usage(), False
        self._service, self._body = service, body
        alternatives = (body.top_logprobs or 0) if body.logprobs else 0
        sampling = body.sampling(number, top_logprobs=alternatives, stop=body.stops)
        self.reply = service.reply(conversation, sampling, **body.rendering())
        self.customs = body.customs
        self.deltas = Deltas(body.customs)
        self._new: dict[str, list[Json]] = {}  # log-probabilities that nobody has taken

    def run(self) -> AsyncGenerator[PrefillProgress | Token, None]:
        limit = self._service.settings.max_tokens if self._body.limit is None else self._body.limit
        return self._service.run(self.reply, limit, self.usage)

    @property
    def tells_progress(self) -> bool:
        return bool(self._body.return_progress)

    def logprobs(self) -> dict[str, list[Json]] | None:
        """Those of the tokens since the last call, reasoning and answer apart as DeepSeek gives them."""
        if not self._body.logprobs:
            return None
        new, self._new = self._new, {}
        return {"content": [], **new}

    def note(self, token: Token) -> None:
        if self._body.logprobs and not token.marker:
            part = self._new.setdefault("reasoning_content" if token.reasoning else "content", [])
            part.append(logprob_object(self._service.engine.tokenizer, token.step))


def message_object(message: Message, customs: Container[str] = ()) -> Json:
    """A whole answer.  customs: tools whose calls have text instead of arguments."""
    result: Json = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        result["reasoning_content"] = message.reasoning
    if message.tool_calls:
        result["content"] = message.content or None
        result["tool_calls"] = [{"id": call.id, **_called(call, customs)} for call in message.tool_calls]
    return result


def _called(call: ToolCall, customs: Container[str]) -> Json:
    if call.name in customs:
        return {"type": "custom", "custom": {"name": call.name, "input": as_input(call.arguments)}}
    return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class Deltas:
    """Pieces of an answer.  What a custom tool is called with comes in one piece: as text, not as JSON."""

    def __init__(self, customs: Container[str]):
        self._customs = customs
        self._called: set[int] = set()  # calls of custom tools

    def of(self, event: Event) -> Json | None:
        """None for what a stream does not tell."""
        match event:
            case ReasoningDelta(text):
                return {"reasoning_content": text}
            case TextDelta(text):
                return {"content": text}
            case ToolCallStarted(index, id, name) if name in self._customs:
                self._called.add(index)
                begun = {"type": "custom", "custom": {"name": name, "input": ""}}
                return {"tool_calls": [{"index": index, "id": id, **begun}]}
            case ToolCallStarted(index, id, name):
                function = {"name": name, "arguments": ""}
                return {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}
            case ArgumentsDelta(index, fragment) if index not in self._called:
                return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
            case ToolCallFinished(index, call) if index in self._called:
                return {"tool_calls": [{"index": index, "custom": {"input": as_input(call.arguments)}}]}
            case _:
                return None


def progress_object(progress: PrefillProgress) -> Json:
    """In llama.cpp's terms."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.done,
        "time_ms": round(1000 * progress.seconds),
    }


def logprob_object(tokenizer: Tokenizer, step: Step) -> Json:
    def entry(token: int, logprob: float) -> Json:
        raw = list(tokenizer.token_bytes(token))
        return {"token": token_name(tokenizer, token), "logprob": finite(logprob), "bytes": raw}

    top = [entry(token, logprob) for token, logprob in step.top_logprobs]
    return {**entry(step.token, step.logprob), "top_logprobs": top}


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    service = service_of(request)

    def prepare() -> list[ChatChoice]:
        conversation = body.conversation()
        return [ChatChoice(service, body, conversation, number) for number in range(body.choices)]

    choices = await service.work.run(prepare)
    return await ChatChoices(service, body, choices).respond(request)


class ChatChoices(Choices[ChatChoice, PrefillProgress | Token]):
    prefix, whole, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def note(self, choice: ChatChoice, update: PrefillProgress | Token) -> None:
        if isinstance(update, Token):
            choice.note(update)

    def finished(self, choice: ChatChoice) -> Json:
        turn, logprobs = choice.reply.turn, choice.logprobs()
        message = message_object(turn.message(), choice.customs)
        return {"message": message, "logprobs": logprobs, "finish_reason": turn.finish_reason}

    def deltas(self, choice: ChatChoice, update: PrefillProgress | Token) -> Iterator[tuple[Json, Json]]:
        """The role, what the model says, the reason why it ended."""

        def part(delta: Json, reason: str | None = None) -> Json:
            return {"delta": delta, "logprobs": choice.logprobs(), "finish_reason": reason}

        self.note(choice, update)
        if not choice.begun:
            choice.begun = True
            yield part({"role": "assistant"}), {}
        if isinstance(update, PrefillProgress) and choice.tells_progress:
            yield part({}), {"prompt_progress": progress_object(update)}
        for event in coalesced(update.events) if isinstance(update, Token) else ():
            if isinstance(event, Done):
                yield part({}, event.finish_reason), {"timings": timings(choice.usage)}
            elif delta := choice.deltas.of(event):
                yield part(delta), {}
