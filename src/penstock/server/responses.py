"""OpenAI's Responses API: /v1/responses."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response

from penstock.engine.requests import Reading
from penstock.server.responses_events import Progress
from penstock.server.responses_models import ResponsesRequest
from penstock.server.service import Service, Token, Usage
from penstock.server.sse import EventStream
from penstock.server.together import unless_gone
from penstock.server.typed_events import reply, sse_event

router = APIRouter()


@router.post("/v1/responses", response_model=None)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    service: Service = request.app.state.service
    settings = service.settings
    usage = Usage()
    limit = body.max_output_tokens or settings.max_tokens
    conversation, force = body.chat(), body.offer().force
    turn = service.chat(conversation, limit, body.sampling(), usage, force_call=force)
    progress = Progress(settings.name, int(time.time()), body.echo(), usage)
    if body.stream:
        return await EventStream.open(
            _lines(progress, turn), settings.ping, lambda error: sse_event(progress.fail(error))
        )
    return reply(await unless_gone(request, _whole(progress, turn)))


Turn = AsyncGenerator[Reading | Token, None]


async def _lines(progress: Progress, turn: Turn) -> AsyncGenerator[str, None]:
    """Server-sent events of the whole turn.  Nothing is sent before the request has its place in the queue."""
    async with aclosing(turn):
        begun = False
        async for update in turn:
            if not begun:
                for made in progress.begin():
                    yield sse_event(made)
                begun = True
            for event in update.events if isinstance(update, Token) else []:
                for made in progress.read(event):
                    yield sse_event(made)


async def _whole(progress: Progress, turn: Turn) -> dict[str, Any]:
    async with aclosing(turn):
        async for update in turn:
            for event in update.events if isinstance(update, Token) else []:
                for _ in progress.read(event):
                    pass
    return progress.response
