"""Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens, and the answers to them.

A tool call is sent once it is complete: a client runs what it is told, and a call that is cut off is no call.
"""

import json
from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter, Request, Response

from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta, ToolCallFinished
from penstock.chat.messages import ToolCall
from penstock.server.api.anthropic_request import CountRequest, MessagesRequest, tool_use_id
from penstock.server.api.shared import Json, NamedEvents
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError, anthropic_envelope
from penstock.server.http.streams import EventStream, json_reply, named_event, unless_disconnected
from penstock.server.service import new_id, service_of
from penstock.server.usage import Usage, sign_of_life

SIGNATURE: Final = "penstock"  # clients expect one; reasoning that comes back is text like any other
PING: Final = named_event({"type": "ping"})
STOP_REASONS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}

router = APIRouter(route_class=BodyRoute)


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
