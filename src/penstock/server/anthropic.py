"""Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens.

A tool call is sent once it is complete: a client runs what it is told, and a call that is cut off is no call.
"""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta, ToolCallFinished
from penstock.chat.messages import ToolCall
from penstock.engine.requests import Reading
from penstock.engine.stops import StopStrings
from penstock.server.anthropic_models import CountRequest, MessagesRequest, tool_use_id
from penstock.server.errors import ApiError, anthropic_envelope
from penstock.server.service import Service, Token, Usage, new_id
from penstock.server.sse import EventStream
from penstock.server.together import unless_gone
from penstock.server.typed_events import reply, sse_event

router = APIRouter()

SIGNATURE: Final = "penstock"  # clients expect one; reasoning that comes back is text like any other
PING: Final = sse_event({"type": "ping"})
STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@router.post("/v1/messages", response_model=None)
async def messages(body: MessagesRequest, request: Request) -> Response:
    service: Service = request.app.state.service
    usage = Usage()
    turn = service.chat(body.conversation(), body.max_tokens, body.sampling(), usage, **body.rendering())
    answer = Answer(service.settings.name, body.stop_sequences or [], usage)
    if body.stream:
        return await EventStream.open(_lines(answer, turn), service.settings.ping, _failure, PING)
    return reply(await unless_gone(request, _whole(answer, turn)))


@router.post("/v1/messages/count_tokens", response_model=None)
async def count_tokens(body: CountRequest, request: Request) -> Response:
    service: Service = request.app.state.service
    _, prompt = service.encode(body.conversation(), **body.rendering())
    return reply({"input_tokens": len(prompt.ids)})


class Answer:
    """The message that a turn becomes, block by block: as events of a stream, and as a whole."""

    def __init__(self, model: str, stop_sequences: list[str], usage: Usage):
        self.id, self.model, self.usage = new_id("msg_"), model, usage
        self.content: list[dict[str, Any]] = []
        self.stop_reason: str | None = None
        self._stops = StopStrings(stop_sequences)
        self._open = ""  # the type of the last block, while there may be more of it
        self._texts: list[str] = []  # what it has so far

    def message(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.content,
            "stop_reason": self.stop_reason,
            "stop_sequence": self._stops.found,
            "usage": self._usage(),
        }

    def begin(self) -> dict[str, Any]:
        return {"type": "message_start", "message": self.message()}

    def take(self, update: Reading | Token) -> list[dict[str, Any]]:
        """The events that follow from an update."""
        if isinstance(update, Reading):
            return []
        return [made for event in update.events if self.stop_reason is None for made in self._read(event)]

    def end(self) -> list[dict[str, Any]]:
        delta = {"stop_reason": self.stop_reason, "stop_sequence": self._stops.found}
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

    def _read(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case ReasoningDelta(text):
                yield from self._more("thinking", text)
            case TextDelta(text):
                yield from self._more("text", self._stops.push(text))
                if self._stops.found is not None:
                    yield from self._close()
                    self.stop_reason = "stop_sequence"
            case ToolCallFinished(_, call):
                yield from self._more("text", self._stops.finish())
                yield from self._call(call)
            case Done(reason):
                yield from self._more("text", self._stops.finish())
                yield from self._close()
                self.stop_reason = STOP_REASONS[reason]
            case _:
                pass  # a call has begun: see above

    def _more(self, kind: str, text: str) -> Iterator[dict[str, Any]]:
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

    def _call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        yield from self._close()
        block = {"type": "tool_use", "id": tool_use_id(call.id), "name": call.name}
        yield self._start({**block, "input": {}})
        self.content[-1]["input"] = _as_object(call.arguments)
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield self._stop()

    def _close(self) -> Iterator[dict[str, Any]]:
        if not self._open:
            return
        self.content[-1][self._open] = "".join(self._texts)
        if self._open == "thinking":
            self.content[-1]["signature"] = SIGNATURE
            yield self._delta({"type": "signature_delta", "signature": SIGNATURE})
        yield self._stop()
        self._open, self._texts = "", []

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        self.content.append(dict(block))
        return {"type": "content_block_start", "index": len(self.content) - 1, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}

    def _stop(self) -> dict[str, Any]:
        return {"type": "content_block_stop", "index": len(self.content) - 1}


Turn = AsyncGenerator[Reading | Token, None]


async def _lines(answer: Answer, turn: Turn) -> AsyncGenerator[str, None]:
    """Server-sent events of the whole turn.  Nothing is sent before the request has its place in the queue."""
    async with aclosing(turn):
        begun = False
        async for update in turn:
            if not begun:
                yield sse_event(answer.begin())
                begun = True
            for event in answer.take(update):
                yield sse_event(event)
            if answer.stop_reason is not None:
                break
        for event in answer.end():
            yield sse_event(event)


async def _whole(answer: Answer, turn: Turn) -> dict[str, Any]:
    async with aclosing(turn):
        async for update in turn:
            answer.take(update)
            if answer.stop_reason is not None:
                break
    return answer.message()


def _failure(error: ApiError) -> str:
    return sse_event(anthropic_envelope(error))


def _as_object(arguments: str) -> dict[str, Any]:
    """A call's arguments.  Numbers of thousands of digits are JSON, but nothing that Python reads."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}
