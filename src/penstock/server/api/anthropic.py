"""Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens.

`cache_control`, `metadata`, signatures and budgets of thinking are accepted and mean nothing here.  The model reasons
only when it is asked to; `output_config.effort` says how hard.  A tool call is sent once it is complete: a client
runs what it is told, and a call that is cut off is no call.
"""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta, ToolCallFinished
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.engine.sampling import Sampling
from penstock.server.api.shared import (
    ALIASES,
    NOT_READ,
    Body,
    Json,
    JsonObject,
    NamedEvents,
    Offer,
    Stops,
    known_tool,
    offer,
    only_text,
    refusal,
    text_as,
    thinking_for,
)
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError, anthropic_envelope
from penstock.server.http.streams import EventStream, json_reply, named_event, unless_disconnected
from penstock.server.service import new_id, service_of
from penstock.server.usage import Usage, sign_of_life

SIGNATURE: Final = "penstock"  # clients expect one; reasoning that comes back is text like any other
PING: Final = named_event({"type": "ping"})
STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

router = APIRouter(route_class=BodyRoute)


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


@router.post("/v1/messages", response_model=None)
async def messages(body: MessagesRequest, request: Request) -> Response:
    service = service_of(request)
    usage = Usage()
    reply = await service.work.run(
        lambda: service.reply(body.conversation(), body.sampling(), **body.rendering())
    )
    turn = service.run(reply, body.max_tokens, usage)
    answer = Answer(service.settings.name, usage)
    if body.stream:
        ping = lambda: f"{sign_of_life([usage])}\n{PING}"  # noqa: E731
        return await EventStream.open(answer.stream(turn), service.settings.ping, _failure, ping)
    return json_reply(await unless_disconnected(request, answer.collect(turn)))


@router.post("/v1/messages/count_tokens", response_model=None)
async def count_tokens(body: CountRequest, request: Request) -> Response:
    service = service_of(request)
    count = await service.work.run(lambda: service.driver.count(body.conversation(), **body.rendering()))
    return json_reply({"input_tokens": count})


class Answer(NamedEvents):
    """The message that a turn becomes, block by block: as events of a stream, and as a whole."""

    def __init__(self, model: str, usage: Usage):
        self.id, self.model, self.usage = new_id("msg_"), model, usage
        self.content: list[Json] = []
        self.stop_reason: str | None = None
        self.stop_sequence: str | None = None
        self._open = ""  # the type of the last block, while there may be more of it
        self._texts: list[str] = []  # what it has so far

    def whole(self) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.content,
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "usage": self._usage(),
        }

    def begin(self) -> list[Json]:
        return [{"type": "message_start", "message": self.whole()}]

    def end(self) -> list[Json]:
        delta = {"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence}
        return [
            {"type": "message_delta", "delta": delta, "usage": self._usage()},
            {"type": "message_stop"},
        ]

    def _usage(self) -> dict[str, int]:
        return {
            "input_tokens": self.usage.prompt - self.usage.cached,
            "cache_read_input_tokens": self.usage.cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self.usage.completion,
        }

    def read(self, event: Event) -> Iterator[Json]:
        match event:
            case ReasoningDelta(text):
                yield from self._more("thinking", text)
            case TextDelta(text):
                yield from self._more("text", text)
            case ToolCallFinished(_, call):
                yield from self._call(call)
            case Done(reason, stop_string):
                yield from self._close()
                self.stop_sequence = stop_string
                self.stop_reason = STOP_REASONS[reason] if stop_string is None else "stop_sequence"
            case _:
                pass  # a call has begun: see above

    def _more(self, kind: str, text: str) -> Iterator[Json]:
        """More text of this kind: in the block that is open, if it is one of these."""
        if not text:
            return
        if self._open != kind:
            yield from self._close()
            signature = {"signature": ""} if kind == "thinking" else {}
            yield self._start({"type": kind, kind: "", **signature})
            self._open = kind
        self._texts.append(text)
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _call(self, call: ToolCall) -> Iterator[Json]:
        yield from self._close()
        block = {"type": "tool_use", "id": tool_use_id(call.id), "name": call.name}
        yield self._start({**block, "input": {}})
        self.content[-1]["input"] = _as_object(call.arguments)
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield self._stop()

    def _close(self) -> Iterator[Json]:
        if not self._open:
            return
        self.content[-1][self._open] = "".join(self._texts)
        if self._open == "thinking":
            self.content[-1]["signature"] = SIGNATURE
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        yield self._stop()
        self._open, self._texts = "", []

    def _start(self, block: Json) -> Json:
        self.content.append(dict(block))
        return {"type": "content_block_start", "index": len(self.content) - 1, "content_block": block}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}

    def _stop(self) -> Json:
        return {"type": "content_block_stop", "index": len(self.content) - 1}


def _failure(error: ApiError) -> str:
    return named_event(anthropic_envelope(error))


def _as_object(arguments: str) -> Json:
    """A call's arguments.  Numbers of thousands of digits are JSON, but nothing that Python reads."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}
