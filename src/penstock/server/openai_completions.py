"""POST /v1/completions: text goes on, without any chat format.

A prompt that is text begins with BOS, which is not part of it in an echo; token ids are taken as they are.  Offsets
of tokens (`text_offset`) are places in the choice's own `text`.
"""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import chain
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from penstock.server.completion_choice import Choice, CompletionRequest, Part, logprobs_object, read_prompt
from penstock.server.errors import ApiError
from penstock.server.openai_answer import combined, failure_chunk, timings, usage_object
from penstock.server.service import Service, Usage, new_id
from penstock.server.sse import DONE, EventStream, data
from penstock.server.together import together, unless_gone

router = APIRouter()


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request) -> Response:
    service: Service = request.app.state.service
    if body.suffix:
        raise ApiError(400, "suffix: text cannot be filled in", code="invalid_value", param="suffix")
    if body.best_of not in (None, body.choices):
        raise ApiError(400, "best_of: only as many as n are made", code="invalid_value", param="best_of")
    answer = _Answer(service, body)
    if body.stream:
        return await EventStream.open(answer.chunks(), service.settings.ping, failure_chunk)
    return JSONResponse(await unless_gone(request, answer.whole()))


class _Answer:
    """The choices for all prompts of one request: those of the first prompt come first."""

    def __init__(self, service: Service, body: CompletionRequest):
        self._service, self._body = service, body
        prompts = [read_prompt(service.engine, prompt) for prompt in body.prompts()]
        self._choices = [
            Choice(service, body, prompt, number) for prompt in prompts for number in range(body.choices)
        ]
        self._id, self._created = new_id("cmpl-"), int(time.time())

    async def whole(self) -> dict[str, Any]:
        parts: list[list[Part]] = [[] for _ in self._choices]
        async with aclosing(self._happenings()) as happenings:
            async for index, part in happenings:
                parts[index].append(part)
        usages = self._usages()
        return {
            **self._head(),
            "choices": [self._choice(index, _joined(found)) for index, found in enumerate(parts)],
            "usage": usage_object(usages),
            "timings": timings(combined(usages)),
        }

    async def chunks(self) -> AsyncGenerator[str, None]:
        async with aclosing(self._happenings()) as happenings:
            async for index, part in happenings:
                if part != Part("", []):
                    yield data({**self._head(), "choices": [self._choice(index, part)]})
        if self._body.wants_usage:
            yield data({**self._head(), "choices": [], "usage": usage_object(self._usages())})
        yield DONE

    def _happenings(self) -> AsyncGenerator[tuple[int, Part], None]:
        return together([choice.run() for choice in self._choices], self._service.settings.parallel)

    def _usages(self) -> list[Usage]:
        """One for each prompt."""
        n = self._body.choices
        usages = [choice.usage for choice in self._choices]
        return [combined(usages[begin : begin + n]) for begin in range(0, len(usages), n)]

    def _head(self) -> dict[str, Any]:
        name = self._service.settings.name
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": name}

    def _choice(self, index: int, part: Part) -> dict[str, Any]:
        wanted = self._body.logprobs is not None
        return {
            "index": index,
            "text": part.text,
            "logprobs": logprobs_object(self._service.engine.tokenizer, part.scored) if wanted else None,
            "finish_reason": part.reason,
        }


def _joined(parts: list[Part]) -> Part:
    return Part(
        "".join(part.text for part in parts),
        list(chain.from_iterable(part.scored for part in parts)),
        parts[-1].reason,
    )
