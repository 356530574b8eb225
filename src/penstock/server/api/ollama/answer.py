"""/api/chat and /api/generate: lines of JSON instead of events.

The model reasons only when `think` asks for it.  `keep_alive` means nothing, but for 0 in a request that asks for
nothing else: then the weights leave memory.
"""

import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response

from penstock.chat.driver import Token
from penstock.chat.events import Done, ReasoningDelta, TextDelta, ToolCallFinished
from penstock.chat.messages import ToolCall
from penstock.engine.steps import Step
from penstock.server.api.ollama.request import Asked, ChatBody, GenerateBody
from penstock.server.api.openai_chat import logprob_object
from penstock.server.api.openai_completions import fill_in, read_prompt
from penstock.server.api.shared import NOT_READ, Json, refusal
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ollama_envelope
from penstock.server.http.streams import LineStream, json_line, json_reply, unless_disconnected
from penstock.server.service import Service, service_of
from penstock.server.usage import Usage

router = APIRouter(route_class=BodyRoute)


class Piece(NamedTuple):
    """More of an answer.  reason: it is over."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    reason: str | None = None
    step: Step | None = None


Pieces = AsyncGenerator[Piece, None]


@router.post("/api/chat", response_model=None)
async def chat(body: ChatBody, request: Request) -> Response:
    service = service_of(request)
    answer = Answer(service, body)
    if not body.messages:
        return json_reply(answer.nothing(_as_message(Piece())))
    reply = await service.work.run(lambda: service.reply(body.conversation(), body.sampling()))
    pieces = _spoken(service.run(reply, body.chosen.limit, answer.usage))
    return await answer.respond(request, pieces, _as_message)


@router.post("/api/generate", response_model=None)
async def generate(body: GenerateBody, request: Request) -> Response:
    service = service_of(request)
    answer = Answer(service, body)
    if not (body.prompt or body.suffix or body.images):
        return json_reply(answer.nothing(_as_response(Piece())))
    if body.raw or body.suffix:
        pieces = _continued(service, body, await service.work.run(_prompt, service, body), answer.usage)
    else:
        reply = await service.work.run(lambda: service.reply(body.conversation(), body.sampling()))
        pieces = _spoken(service.run(reply, body.chosen.limit, answer.usage))
    return await answer.respond(request, pieces, _as_response)


def _prompt(service: Service, body: GenerateBody) -> list[int]:
    if body.images:
        raise refusal("images", NOT_READ.format(kind="images"))
    if body.format:
        raise refusal("format", "not supported for raw text and with a suffix")
    if body.suffix:
        return fill_in(service.engine, body.prompt, body.suffix)
    return read_prompt(service.engine, body.prompt).ids


async def _spoken(turn: AsyncGenerator[Any, None]) -> Pieces:
    """An assistant's turn."""
    async with aclosing(turn):
        async for token in turn:
            if not isinstance(token, Token):
                yield Piece()
                continue
            events = token.events
            done = next((event for event in events if isinstance(event, Done)), None)
            yield Piece(
                "".join(event.text for event in events if isinstance(event, TextDelta)),
                "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
                tuple(event.call for event in events if isinstance(event, ToolCallFinished)),
                None if done is None else "length" if done.finish_reason == "length" else "stop",
                None if token.marker else token.step,
            )


async def _continued(service: Service, body: GenerateBody, ids: list[int], usage: Usage) -> Pieces:
    """Text that goes on, without any chat format."""
    stream = service.complete(ids, body.chosen.limit, body.sampling(), usage)
    async with aclosing(stream):
        async for update in stream:
            if isinstance(update, Step):
                yield Piece(update.text, reason=update.finish_reason, step=update)
            else:
                yield Piece()


def _as_message(piece: Piece) -> Json:
    message: Json = {"role": "assistant", "content": piece.text}
    if piece.thinking:
        message["thinking"] = piece.thinking
    if piece.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "function": {"index": index, "name": call.name, "arguments": _object(call.arguments)},
            }
            for index, call in enumerate(piece.calls)
        ]
    return {"message": message}


def _as_response(piece: Piece) -> Json:
    return {"response": piece.text, **({"thinking": piece.thinking} if piece.thinking else {})}


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return {"arguments": arguments}


class Answer:
    """Pieces as lines of JSON, or as one object."""

    def __init__(self, service: Service, body: Asked):
        self.service, self.body, self.usage = service, body, Usage()

    def nothing(self, empty: Json) -> Json:
        """Who asks for nothing wants the model to be there, or to go."""
        goes = self.body.keep_alive in (0, "0", "0s", "0m")
        if goes or self.service.engine.parked:
            self.service.scheduler.park(goes)
        return {**self._head(), **empty, "done": True, "done_reason": "unload" if goes else "load"}

    async def respond(self, request: Request, pieces: Pieces, shape: Any) -> Response:
        if self.body.stream is not False:
            empty = {**self._head(), **shape(Piece()), "done": False}
            return await LineStream.open(
                self._lines(pieces, shape),
                self.service.settings.ping,
                lambda error: json_line(ollama_envelope(error)),
                lambda: json_line(empty),  # there are no comments in JSON
            )
        return json_reply(await unless_disconnected(request, self._collect(pieces, shape)))

    async def _lines(self, pieces: Pieces, shape: Any) -> AsyncGenerator[str, None]:
        async with aclosing(pieces):
            async for piece in pieces:
                if piece.text or piece.thinking or piece.calls:
                    scores = self._logprobs([piece])
                    yield json_line({**self._head(), **shape(piece), **scores, "done": False})
                if piece.reason is not None:
                    yield json_line({**self._head(), **shape(Piece()), **self._end(piece.reason)})

    async def _collect(self, pieces: Pieces, shape: Any) -> Json:
        found: list[Piece] = []
        async with aclosing(pieces):
            async for piece in pieces:
                found.append(piece)
        whole = Piece(
            "".join(piece.text for piece in found),
            "".join(piece.thinking for piece in found),
            tuple(call for piece in found for call in piece.calls),
        )
        reason = found[-1].reason or "stop"
        return {**self._head(), **shape(whole), **self._logprobs(found), **self._end(reason)}

    def _logprobs(self, pieces: list[Piece]) -> Json:
        if not self.body.logprobs:
            return {}
        steps = [piece.step for piece in pieces if piece.step is not None]
        return {"logprobs": [logprob_object(self.service.engine.tokenizer, step) for step in steps]}

    def _head(self) -> Json:
        return {"model": self.body.model, "created_at": when(time.time())}

    def _end(self, reason: str) -> Json:
        usage = self.usage
        first = usage.first or time.monotonic()
        last = usage.last or first
        return {
            "done": True,
            "done_reason": reason,
            "total_duration": nanoseconds(last - usage.begun),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": nanoseconds(first - usage.begun),
            "eval_count": usage.completion,
            "eval_duration": nanoseconds(last - first),
        }


def nanoseconds(seconds: float) -> int:
    return max(int(1e9 * seconds), 1)


def when(seconds: float) -> str:
    """
    >>> when(0)
    '1970-01-01T00:00:00.000000Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
