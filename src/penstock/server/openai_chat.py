"""POST /v1/chat/completions, in OpenAI's words with DeepSeek's additions (`reasoning_content`, `thinking`)."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from penstock.chat.events import Done, coalesced
from penstock.chat.turn import Turn
from penstock.engine.requests import Reading
from penstock.server.openai_answer import combined, failure_chunk, timings, usage_object
from penstock.server.openai_chat_request import ChatRequest
from penstock.server.openai_choice import Choice, delta_object, message_object
from penstock.server.service import Service, Token, new_id
from penstock.server.sse import DONE, EventStream, data
from penstock.server.together import together, unless_gone

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    service: Service = request.app.state.service
    answer = _Answer(service, body)
    if body.stream:
        return await EventStream.open(answer.chunks(), service.settings.ping, failure_chunk)
    return JSONResponse(await unless_gone(request, answer.whole()))


class _Answer:
    """The choices of one request, whole or piece by piece."""

    def __init__(self, service: Service, body: ChatRequest):
        self._service, self._body = service, body
        conversation = body.conversation()
        self._choices = [Choice(service, body, conversation, number) for number in range(body.choices)]
        self._id, self._created = new_id("chatcmpl-"), int(time.time())

    async def whole(self) -> dict[str, Any]:
        turns = [Turn(thinking=choice.thinks) for choice in self._choices]
        async with aclosing(self._happenings()) as happenings:
            async for index, update in happenings:
                if isinstance(update, Token):
                    turns[index].add(update.events)
        usage = combined([choice.usage for choice in self._choices])
        return {
            **self._head("chat.completion"),
            "choices": [
                {
                    "index": index,
                    "message": message_object(turn.message()),
                    "logprobs": choice.logprobs(),
                    "finish_reason": turn.finish_reason,
                }
                for index, (turn, choice) in enumerate(zip(turns, self._choices, strict=True))
            ],
            "usage": usage_object([usage]),
            "timings": timings(usage),
        }

    async def chunks(self) -> AsyncGenerator[str, None]:
        """The role, what the model says, the reason why it ended; usage if asked for; the end of the stream."""
        begun: set[int] = set()
        async with aclosing(self._happenings()) as happenings:
            async for index, update in happenings:
                if index not in begun:
                    begun.add(index)
                    yield self._chunk(index, {"role": "assistant"})
                for event in coalesced(update.events) if isinstance(update, Token) else ():
                    if isinstance(event, Done):
                        spent = timings(self._choices[index].usage)
                        yield self._chunk(index, {}, event.finish_reason, timings=spent)
                    elif delta := delta_object(event):
                        yield self._chunk(index, delta)
        if self._body.wants_usage:
            usage = combined([choice.usage for choice in self._choices])
            yield data({**self._head("chat.completion.chunk"), "choices": [], "usage": usage_object([usage])})
        yield DONE

    def _happenings(self) -> AsyncGenerator[tuple[int, Reading | Token], None]:
        return together([choice.run() for choice in self._choices], self._service.settings.parallel)

    def _head(self, kind: str) -> dict[str, Any]:
        name = self._service.settings.name  # not what the client calls it: this is who answers
        return {"id": self._id, "object": kind, "created": self._created, "model": name}

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
        logprobs = self._choices[index].logprobs()
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return data({**self._head("chat.completion.chunk"), "choices": [choice], **more})
