"""One choice of a text completion: the prompt if it is to be echoed, then what follows it."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from penstock.engine.engine import Engine
from penstock.engine.requests import Reading
from penstock.engine.steps import Step
from penstock.server.errors import ApiError
from penstock.server.openai_answer import finite, token_name
from penstock.server.prompt_logprobs import prompt_logprobs
from penstock.server.sampling_fields import SamplingFields
from penstock.server.service import Service, Usage
from penstock.tokenizer import Tokenizer

DEFAULT_TOKENS = 16  # OpenAI's

Ids = Annotated[list[int], Field(min_length=1)]


class CompletionRequest(SamplingFields):
    prompt: str | Ids | Annotated[list[str], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)]
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=5)
    suffix: str | None = None
    best_of: int | None = None
    ignore_eos: bool | None = None

    def prompts(self) -> list[str | list[int]]:
        if isinstance(self.prompt, str):
            return [self.prompt]
        ids = [token for token in self.prompt if isinstance(token, int)]
        return [ids] if ids else [part for part in self.prompt if not isinstance(part, int)]


class Prompt(NamedTuple):
    """`bos`: the ids begin with a BOS that the client did not write."""

    ids: list[int]
    text: str
    bos: bool


def read_prompt(engine: Engine, prompt: str | list[int]) -> Prompt:
    tokenizer = engine.tokenizer
    if isinstance(prompt, str):
        begin = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        read = Prompt([*begin, *tokenizer.encode(prompt)], prompt, bool(begin))
    else:
        if any(not 0 <= token < tokenizer.vocab_size for token in prompt):
            message = f"prompt: token ids go from 0 to {tokenizer.vocab_size - 1}"
            raise ApiError(400, message, code="invalid_value", param="prompt")
        read = Prompt(prompt, tokenizer.decode(prompt), False)
    if not read.ids:
        raise ApiError(400, "prompt: it is empty", code="invalid_value", param="prompt")
    return read


class Scored(NamedTuple):
    """A token, where it begins in the text, and how likely it was; the first of all has no likelihood."""

    token: int
    offset: int
    logprob: float | None
    top: list[tuple[int, float]]


class Part(NamedTuple):
    """More of a choice."""

    text: str
    scored: list[Scored]
    reason: str | None = None


class Choice:
    """One continuation of one prompt."""

    def __init__(self, service: Service, body: CompletionRequest, prompt: Prompt, number: int):
        self.usage = Usage(prompt=len(prompt.ids))
        self._service, self._body, self._prompt = service, body, prompt
        self._sampling = body.sampling(
            number, stop=body.stops, top_logprobs=body.logprobs or 0, ignore_eos=bool(body.ignore_eos)
        )
        self._decoder = service.engine.tokenizer.stream()
        self._offset = 0

    async def run(self) -> AsyncGenerator[Part, None]:
        limit = DEFAULT_TOKENS if self._body.limit is None else self._body.limit
        if self._body.echo:
            yield await self._echo()
        if limit == 0:
            self.usage.ended = time.monotonic()
            yield Part("", [], "length")
            return
        stream = self._service.complete(self._prompt.ids, limit, self._sampling, self.usage)
        async with aclosing(stream):
            async for update in stream:
                if isinstance(update, Reading):
                    yield Part("", [])
                else:
                    yield Part(update.text, self._scored(update), update.finish_reason)

    async def _echo(self) -> Part:
        prompt, engine = self._prompt, self._service.engine
        if self._body.logprobs is None:
            return Part(prompt.text, [])
        given_up = threading.Event()
        try:
            steps = await asyncio.to_thread(
                prompt_logprobs, engine, prompt.ids, self._body.logprobs, given_up
            )
        finally:
            given_up.set()
        begin = [] if prompt.bos else [self._place(prompt.ids[0], None, [])]
        return Part(
            prompt.text, begin + [self._place(step.token, step.logprob, step.top_logprobs) for step in steps]
        )

    def _scored(self, step: Step) -> list[Scored]:
        engine = self._service.engine
        ended = step.finish_reason == "stop" and step.token in (
            *engine.config.eos_ids,
            *engine.tokenizer.eos_ids,
        )
        if self._body.logprobs is None or ended:
            return []
        return [self._place(step.token, step.logprob, step.top_logprobs)]

    def _place(self, token: int, logprob: float | None, top: list[tuple[int, float]]) -> Scored:
        scored = Scored(token, self._offset, logprob, top)
        self._offset += len(self._decoder.push(token))
        return scored


def logprobs_object(tokenizer: Tokenizer, scored: Iterable[Scored]) -> dict[str, Any]:
    """Four lists with an entry for each token; the chosen one is always among its alternatives."""
    result: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token, offset, logprob, top in scored:
        name = token_name(tokenizer, token)
        result["tokens"].append(name)
        result["text_offset"].append(offset)
        if logprob is None:
            result["token_logprobs"].append(None)
            result["top_logprobs"].append(None)
        else:
            others = {token_name(tokenizer, other): finite(value) for other, value in top}
            result["token_logprobs"].append(finite(logprob))
            result["top_logprobs"].append({**others, name: finite(logprob)})
    return result
