"""OpenAI's Responses API: /v1/responses.

Nothing is stored: a client sends the whole conversation each time.  Tools that OpenAI's own servers run, such as web
search, do not exist here and are left out of the offer.  The model reasons only when it is asked to.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BeforeValidator, Field, JsonValue

from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta, ToolCallFinished
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.engine.sampling import Sampling
from penstock.server.api.shared import (
    ALIASES,
    Body,
    Json,
    JsonObject,
    NamedEvents,
    Offer,
    check_results,
    offer,
    refusal,
    text_as,
    thinking_for,
)
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError
from penstock.server.http.streams import EventStream, json_reply, named_event, unless_disconnected
from penstock.server.service import new_id, service_of
from penstock.server.usage import Usage, sign_of_life

router = APIRouter(route_class=BodyRoute)


class TextPart(Body):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class Refusal(Body):
    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | Refusal, Field(discriminator="type")]
Parts = Annotated[list[Part], text_as("input_text")]


class MessageItem(Body):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class FunctionCall(Body):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(Body):
    type: Literal["function_call_output"]
    call_id: str
    output: Parts


class ReasoningItem(Body):
    type: Literal["reasoning"]
    summary: list[TextPart] = Field(default_factory=list)
    content: list[TextPart] | None = None


def _with_type(item: Any) -> Any:
    """The type of a message may be left out."""
    return {"type": "message", **item} if isinstance(item, dict) and "role" in item else item


def _items(value: Any) -> Any:
    """A string is what a user says."""
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


Item = Annotated[
    Annotated[MessageItem | FunctionCall | FunctionCallOutput | ReasoningItem, Field(discriminator="type")],
    BeforeValidator(_with_type),
]


class Tool(Body):
    """A function's fields lie flat; of any other tool only the type matters."""

    type: str
    name: str = ""
    description: str | None = None
    parameters: JsonObject | None = None


class NamedTool(Body):
    type: str
    name: str = ""


class ToolChoice(Body):
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool] = Field(default_factory=list)


def _choice(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class Reasoning(Body):
    effort: str | None = None
    summary: str | None = None


class Format(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    format: Format | None = None


class ResponsesRequest(Body):
    model: str | None = None
    input: Annotated[list[Item], BeforeValidator(_items), Field(min_length=1)]
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[ToolChoice | None, BeforeValidator(_choice)] = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    stream: bool | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: JsonValue = None
    conversation: JsonValue = None

    def chat(self) -> Conversation:
        for field in ("previous_response_id", "conversation"):
            if getattr(self, field) is not None:
                raise refusal(field, "this server stores nothing; send the whole conversation as input")
        messages = [Message(Role.SYSTEM, self.instructions)] if self.instructions else []
        messages += _messages(self.input)
        check_results(messages, "input")
        form = self.text.format if self.text else None
        if form and form.type == "json_schema" and form.schema_ is None:
            raise refusal("text.format.schema", "missing")
        tools = self.offer()
        return Conversation(
            tuple(messages),
            tools.tools,
            self.thinking(),
            choice=tools.choice,
            response_schema=form.schema_ if form and form.type == "json_schema" else None,
            json_only=form is not None
            and (form.type == "json_object" or (form.type == "json_schema" and form.strict is False)),
            schema_field="text.format.schema",
            parallel_calls=self.parallel_tool_calls is not False,
        )

    def thinking(self) -> Thinking:
        default = Thinking.HIGH if ALIASES.get(self.model or "") else Thinking.OFF
        return thinking_for(self.reasoning.effort if self.reasoning else None, "reasoning.effort", default)

    def offer(self) -> Offer:
        tools = [_function(number, tool) for number, tool in enumerate(self.functions())]
        match self.tool_choice:
            case None:
                return offer(tools, "auto")
            case ToolChoice(type="auto" | "none" | "required" as choice):
                return offer(tools, choice)
            case ToolChoice(type="function", name=str(name)):
                return offer(tools, "required", [name])
            case ToolChoice(type="allowed_tools", mode=mode):
                return offer(tools, mode, [tool.name for tool in self.tool_choice.tools])
            case other:
                raise refusal(
                    "tool_choice", f"{other.type!r} is not auto, none, required or a function's name"
                )

    def functions(self) -> list[Tool]:
        return [tool for tool in self.tools or [] if tool.type == "function"]

    def sampling(self) -> Sampling:
        given = {"temperature": self.temperature, "top_p": self.top_p}
        return Sampling(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def echo(self) -> Json:
        """The fields of a request that its response repeats."""
        reasoning = self.reasoning or Reasoning()
        choice = self.tool_choice.model_dump(exclude_unset=True) if self.tool_choice else {"type": "auto"}
        form = self.text.format if self.text else None
        return {
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": reasoning.model_dump(),
            "store": False,
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "text": {
                "format": form.model_dump(by_alias=True, exclude_none=True) if form else {"type": "text"}
            },
            "tool_choice": choice if len(choice) > 1 else choice["type"],
            "tools": [{"strict": None, **tool.model_dump()} for tool in self.functions()],
            "top_p": 1.0 if self.top_p is None else self.top_p,
            "truncation": "disabled",
        }


def _function(number: int, tool: Tool) -> Json:
    if not tool.name:
        raise refusal(f"tools.{number}.name", "missing")
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, "parameters": tool.parameters or {}}


def _messages(items: list[MessageItem | FunctionCall | FunctionCallOutput | ReasoningItem]) -> list[Message]:
    """Reasoning, text and calls that follow each other in this order are one turn of the assistant."""
    messages: list[Message] = []
    for item in items:
        match item:
            case ReasoningItem():
                turn = _open_turn(messages, "content", "tool_calls")
                thoughts = [turn.reasoning] if turn.reasoning else []
                text = "\n\n".join([*thoughts, _joined(item.content or item.summary)])
                messages.append(replace(turn, reasoning=text))
            case MessageItem(role="assistant"):
                turn = _open_turn(messages, "content", "tool_calls")
                messages.append(replace(turn, content=_joined(item.content)))
            case FunctionCall():
                turn = _open_turn(messages)
                call = ToolCall(item.call_id, item.name, item.arguments)
                messages.append(replace(turn, tool_calls=(*turn.tool_calls, call)))
            case FunctionCallOutput():
                result = _joined(item.output, "\n\n")
                messages.append(Message(Role.TOOL, result, tool_call_id=item.call_id))
            case MessageItem():
                messages.append(Message(Role(item.role), _joined(item.content)))
    return messages


def _open_turn(messages: list[Message], *without: str) -> Message:
    """The assistant's turn that an item belongs to, taken off the end: the last one, unless it has something already
    that comes after such an item."""
    last = messages[-1] if messages else None
    if last is None or last.role is not Role.ASSISTANT or any(getattr(last, name) for name in without):
        return Message(Role.ASSISTANT)
    return messages.pop()


def _joined(parts: list[TextPart] | list[Part], between: str = "\n") -> str:
    return between.join(part.refusal if isinstance(part, Refusal) else part.text for part in parts)


class Answer(NamedEvents):
    """The response object, and the events that tell how it comes about.

    A function call is sent once it is complete: a client runs what it is told, and a call that is cut off is no call.
    """

    def __init__(self, model: str, created: int, echo: Json, usage: Usage):
        self.usage, self.finished = usage, False
        self.response: Json = {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "usage": None,
            **echo,
        }
        self._number = 0
        self._open: _Block | None = None

    def begin(self) -> Iterator[Json]:
        for name in ("response.created", "response.in_progress"):
            yield self._event(name, response=self.response)

    def read(self, event: Event) -> Iterator[Json]:
        match event:
            case ReasoningDelta(text):
                yield from self._more(_Reasoning, text)
            case TextDelta(text):
                yield from self._more(_Text, text)
            case ToolCallFinished(_, call):
                yield from self._close()
                yield from self._call(call)
            case Done(reason):
                yield from self._close("incomplete" if reason == "length" else "completed")
                yield from self._end(reason)
            case _:
                pass  # a call has begun

    def end(self) -> tuple[Json, ...]:
        return ()

    def whole(self) -> Json:
        return self.response

    def fail(self, error: ApiError) -> Json:
        """The last event of a stream that goes wrong."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        self._settle("failed")
        self.response["error"] = {"code": code, "message": error.message}
        return self._event("response.failed", response=self.response)

    def _end(self, reason: str) -> Iterator[Json]:
        cut = reason == "length"
        self._settle("incomplete" if cut else "completed")
        self.response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        yield self._event(f"response.{self.response['status']}", response=self.response)

    def _settle(self, status: str) -> None:
        self.finished = True
        self.response["status"] = status
        self.response["usage"] = usage_object(self.usage)

    def _more(self, kind: "type[_Block]", text: str) -> Iterator[Json]:
        if not isinstance(self._open, kind):
            yield from self._close()
            self._open = kind()
            yield from self._add(self._open.item("in_progress"))
            yield self._part("added", self._open, self._open.part())
        self._open.texts.append(text)
        yield self._in_part(f"{self._open.event}.delta", self._open, delta=text)

    def _close(self, status: str = "completed") -> Iterator[Json]:
        if self._open is None:
            return
        block, self._open = self._open, None
        yield self._in_part(f"{block.event}.done", block, text="".join(block.texts))
        yield self._part("done", block, block.part())
        yield from self._finish(block.item(status))

    def _call(self, call: ToolCall) -> Iterator[Json]:
        item = {"type": "function_call", "id": new_id("fc_"), "call_id": call.id, "name": call.name}
        yield from self._add({**item, "arguments": "", "status": "in_progress"})
        place = {"item_id": item["id"], "output_index": self._index}
        name = "response.function_call_arguments"
        yield self._event(f"{name}.delta", **place, delta=call.arguments)
        yield self._event(f"{name}.done", **place, name=call.name, arguments=call.arguments)
        yield from self._finish({**item, "arguments": call.arguments, "status": "completed"})

    @property
    def _index(self) -> int:
        """Of the item that is being made: those before it are finished."""
        return len(self.response["output"])

    def _add(self, item: Json) -> Iterator[Json]:
        yield self._event("response.output_item.added", output_index=self._index, item=item)

    def _finish(self, item: Json) -> Iterator[Json]:
        yield self._event("response.output_item.done", output_index=self._index, item=item)
        self.response["output"].append(item)

    def _part(self, what: str, block: "_Block", part: Json) -> Json:
        return self._in_part(f"{block.part_event}.{what}", block, part=part)

    def _in_part(self, name: str, block: "_Block", **fields: Any) -> Json:
        logprobs: Json = {"logprobs": []} if name.startswith(_Text.event) else {}
        place = {"item_id": block.id, "output_index": self._index, block.index: 0}
        return self._event(name, **place, **fields, **logprobs)

    def _event(self, kind: str, **fields: Any) -> Json:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


class _Block(ABC):
    """An item that is a text, while it grows."""

    prefix: ClassVar[str]
    event: ClassVar[str]
    part_event: ClassVar[str]
    index: ClassVar[str]

    def __init__(self) -> None:
        self.id = new_id(self.prefix)
        self.texts: list[str] = []

    @abstractmethod
    def part(self) -> Json: ...

    @abstractmethod
    def item(self, status: str) -> Json: ...


class _Reasoning(_Block):
    """What the model thinks, as a summary: clients show that part, and send it back."""

    prefix, index = "rs_", "summary_index"
    event, part_event = "response.reasoning_summary_text", "response.reasoning_summary_part"

    def part(self) -> Json:
        return {"type": "summary_text", "text": "".join(self.texts)}

    def item(self, status: str) -> Json:
        summary = [self.part()] if self.texts else []
        return {"type": "reasoning", "id": self.id, "summary": summary, "status": status}


class _Text(_Block):
    """The answer."""

    prefix, index = "msg_", "content_index"
    event, part_event = "response.output_text", "response.content_part"

    def part(self) -> Json:
        return {"type": "output_text", "text": "".join(self.texts), "annotations": [], "logprobs": []}

    def item(self, status: str) -> Json:
        content = [self.part()] if self.texts else []
        return {"type": "message", "id": self.id, "role": "assistant", "content": content, "status": status}


def usage_object(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


@router.post("/v1/responses", response_model=None)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    service = service_of(request)
    settings = service.settings
    usage = Usage()
    limit = body.max_output_tokens or settings.max_tokens
    reply = await service.work.run(
        lambda: service.reply(body.chat(), body.sampling(), forced=body.offer().force)
    )
    turn = service.run(reply, limit, usage)
    answer = Answer(settings.name, int(time.time()), body.echo(), usage)
    if body.stream:
        failure = lambda error: named_event(answer.fail(error))  # noqa: E731
        alive = lambda: sign_of_life([usage]) + "\n\n"  # noqa: E731
        return await EventStream.open(answer.stream(turn), settings.ping, failure, alive)
    return json_reply(await unless_disconnected(request, answer.collect(turn)))
