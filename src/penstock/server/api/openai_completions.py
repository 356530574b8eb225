"""POST /v1/completions: text goes on, without any chat format.

A prompt that is text begins with BOS, which is not part of it in an echo; token ids are taken as they are.  Offsets
of tokens (`text_offset`) are places in the choice's own `text`.
"""

import time
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import chain
from typing import Annotated, Any, Final, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from penstock.engine.engine import Engine
from penstock.engine.progress import PrefillProgress
from penstock.engine.requests import Scored
from penstock.engine.steps import Step
from penstock.server.api.openai import Choices, finite, token_name
from penstock.server.api.shared import Json, SamplingFields, refusal
from penstock.server.http.bodies import BodyRoute
from penstock.server.service import Service, service_of
from penstock.server.usage import Usage
from penstock.tokenizer import Tokenizer

router = APIRouter(route_class=BodyRoute)

DEFAULT_TOKENS = 16  # OpenAI's

MAX_PROMPTS: Final = 256  # of a request

Several: Final = Field(min_length=1, max_length=MAX_PROMPTS)
Ids = Annotated[list[int], Field(min_length=1)]


class CompletionRequest(SamplingFields):
    prompt: str | Ids | Annotated[list[str], Several] | Annotated[list[Ids], Several]
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

    def read(self, engine: Engine, prompt: str | list[int]) -> "Prompt":
        if not self.suffix:
            return read_prompt(engine, prompt)
        if not isinstance(prompt, str) or self.echo:
            field, why = ("prompt", "tokens") if not isinstance(prompt, str) else ("echo", "a prompt")
            raise refusal(field, f"{why} cannot go with a suffix: the two enclose what is written")
        return Prompt(fill_in(engine, prompt, self.suffix), prompt, True)


class Prompt(NamedTuple):
    """`bos`: the ids begin with a BOS that the client did not write."""

    ids: list[int]
    text: str
    bos: bool


def read_prompt(engine: Engine, prompt: str | list[int]) -> Prompt:
    tokenizer = engine.tokenizer
    if isinstance(prompt, str):
        begin = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        room = engine.context - len(begin)  # a prompt that is only scored may fill the context
        read = Prompt([*begin, *tokenizer.encode(prompt, most=room)], prompt, bool(begin))
    else:
        if any(not 0 <= token < tokenizer.vocab_size for token in prompt):
            raise refusal("prompt", f"token ids go from 0 to {tokenizer.vocab_size - 1}")
        read = Prompt(prompt, tokenizer.decode(prompt), False)
    if not read.ids:
        raise refusal("prompt", "it is empty")
    return read


def fill_in(engine: Engine, before: str, after: str, begun: str = "") -> list[int]:
    """The prompt for what stands between two texts, as DeepSeek's models are taught it; `begun`: its beginning."""
    tokenizer, room = engine.tokenizer, engine.context
    marks = [tokenizer.token_id(f"<｜fim▁{name}｜>") for name in ("begin", "hole", "end")]
    if None in marks:
        raise refusal("suffix", "this model has no markers for text that is filled in")
    begin, hole, end = (mark for mark in marks if mark is not None)
    ids = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    ids += [begin, *tokenizer.encode(before, most=room), hole, *tokenizer.encode(after, most=room), end]
    return [*ids, *tokenizer.encode(begun, most=room)]


class TokenScore(NamedTuple):
    """A token, where it begins in the text, and how likely it was; the first of all has no likelihood."""

    token: int
    offset: int
    logprob: float | None
    top: list[tuple[int, float]]


class Part(NamedTuple):
    """More of a choice."""

    text: str
    scored: list[TokenScore]
    reason: str | None = None


class TextChoice:
    """One continuation of one prompt."""

    def __init__(self, service: Service, body: CompletionRequest, prompt: Prompt, number: int):
        self.usage, self.parts = Usage(prompt=len(prompt.ids)), list[Part]()
        self._service, self._body, self._prompt = service, body, prompt
        self._sampling = body.sampling(
            number, stop=body.stops, top_logprobs=body.logprobs or 0, ignore_eos=bool(body.ignore_eos)
        )
        self._decoder = service.engine.tokenizer.stream()
        self._offset = 0

    def as_json(self, part: Part) -> Json:
        tokenizer, wanted = self._service.engine.tokenizer, self._body.logprobs is not None
        logprobs = logprobs_object(tokenizer, part.scored) if wanted else None
        return {"text": part.text, "logprobs": logprobs, "finish_reason": part.reason}

    async def run(self) -> AsyncGenerator[Part, None]:
        limit = DEFAULT_TOKENS if self._body.limit is None else self._body.limit
        score = self._body.logprobs if self._body.echo else None
        if self._body.echo and score is None:
            yield Part(self._prompt.text, [])
        if limit == 0 and score is None:
            self.usage.ended = time.monotonic()
        else:
            stream = self._service.complete(self._prompt.ids, limit, self._sampling, self.usage, score=score)
            begins = score is not None and not self._prompt.bos
            echo = [self._place(self._prompt.ids[0], None, [])] if begins else []
            async with aclosing(stream):
                async for update in stream:
                    match update:
                        case PrefillProgress():
                            yield Part("", [])
                        case Scored(steps):
                            echo += [self._place(s.token, s.logprob, s.top_logprobs) for s in steps]
                            if len(echo) + self._prompt.bos == len(self._prompt.ids):
                                yield Part(self._prompt.text, echo)
                        case Step():
                            yield Part(update.text, self._scored(update), update.finish_reason)
        if limit == 0:
            yield Part("", [], "length")

    def _scored(self, step: Step) -> list[TokenScore]:
        engine = self._service.engine
        ended = step.finish_reason == "stop" and step.token in (
            *engine.config.eos_ids,
            *engine.tokenizer.eos_ids,
        )
        if self._body.logprobs is None or ended:
            return []
        return [self._place(step.token, step.logprob, step.top_logprobs)]

    def _place(self, token: int, logprob: float | None, top: list[tuple[int, float]]) -> TokenScore:
        scored = TokenScore(token, self._offset, logprob, top)
        self._offset += len(self._decoder.push(token))
        return scored


def logprobs_object(tokenizer: Tokenizer, scored: Iterable[TokenScore]) -> Json:
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


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request) -> Response:
    service = service_of(request)
    if body.best_of not in (None, body.choices):
        raise refusal("best_of", "only as many as n are made")

    def prepare() -> list[TextChoice]:
        prompts = [body.read(service.engine, prompt) for prompt in body.prompts()]
        return [TextChoice(service, body, prompt, n) for prompt in prompts for n in range(body.choices)]

    choices = await service.work.run(prepare)
    return await TextChoices(service, body, choices).respond(request)


class TextChoices(Choices[TextChoice, Part]):
    prefix, whole, chunk = "cmpl-", "text_completion", "text_completion"

    def note(self, choice: TextChoice, update: Part) -> None:
        choice.parts.append(update)

    def finished(self, choice: TextChoice) -> Json:
        return choice.as_json(_joined(choice.parts))

    def deltas(self, choice: TextChoice, update: Part) -> Iterator[tuple[Json, Json]]:
        if update != Part("", []):
            yield choice.as_json(update), {}


def _joined(parts: list[Part]) -> Part:
    return Part(
        "".join(part.text for part in parts),
        list(chain.from_iterable(part.scored for part in parts)),
        parts[-1].reason,
    )
