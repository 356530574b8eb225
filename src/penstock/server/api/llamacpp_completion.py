"""llama.cpp's own way to go on with a text: /completion, and /infill for the text between two others."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, Field

from penstock.engine.progress import PrefillProgress
from penstock.engine.steps import Step
from penstock.engine.stops import StopStrings
from penstock.server.api.llamacpp_settings import CompletionSettings
from penstock.server.api.openai import finite, token_name
from penstock.server.api.openai_chat import progress_object
from penstock.server.api.openai_completions import Several, fill_in, read_prompt
from penstock.server.api.shared import NOT_READ, Body, Json, refusal
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import llamacpp_envelope
from penstock.server.http.streams import EventStream, data, json_reply, merged, unless_disconnected
from penstock.server.service import Service, service_of
from penstock.server.usage import Usage, sign_of_life, timings

router = APIRouter(route_class=BodyRoute)

Mixed = Annotated[list[str | int], Field(min_length=1)]


def _only_text(prompt: Any) -> Any:
    for part in prompt if isinstance(prompt, list) else [prompt]:
        if isinstance(part, dict) and "multimodal_data" in part:
            raise refusal("prompt", NOT_READ.format(kind="images"))
    return prompt


class CompletionBody(CompletionSettings):
    prompt: Annotated[
        str | Mixed | Annotated[list[str | Mixed], Several],
        BeforeValidator(_only_text),
    ]

    def prompts(self) -> list[str | list[str | int]]:
        """A list is one prompt if there is a token among its parts, else several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [part for part in self.prompt if isinstance(part, str | int)]
        if any(isinstance(part, int) for part in tokens):
            return [tokens]
        return [part for part in self.prompt if not isinstance(part, int)]


class Extra(Body):
    text: str
    filename: str = ""


class InfillBody(CompletionSettings):
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Extra] = Field(default_factory=list)
    prompt: str = ""


@router.post("/completion", response_model=None)
@router.post("/completions", response_model=None)
async def completion(body: CompletionBody, request: Request) -> Response:
    service = service_of(request)

    def prepare() -> list["Completion"]:
        body.check(service.settings.parallel)
        prompts = [_ids(service, prompt) for prompt in body.prompts()]
        return _completions(service, body, prompts)

    several = len(body.prompts()) * (body.n_cmpl or 1) > 1
    return await _respond(request, body, await service.work.run_costly(prepare), several)


@router.post("/infill", response_model=None)
async def infill(body: InfillBody, request: Request) -> Response:
    """What is written between a prefix and a suffix; `prompt` is what it begins with already."""
    service = service_of(request)

    def prepare() -> list["Completion"]:
        body.check(service.settings.parallel)
        files = [
            f"--- {extra.filename} ---\n{extra.text}" if extra.filename else extra.text
            for extra in body.input_extra
        ]
        prefix = "\n\n".join([*files, body.input_prefix])
        ids = fill_in(service.engine, prefix, body.input_suffix, body.prompt)
        return _completions(service, body, [ids])

    return await _respond(request, body, await service.work.run_costly(prepare), (body.n_cmpl or 1) > 1)


def _ids(service: Service, prompt: str | list[str | int]) -> list[int]:
    """Text begins with BOS, also if tokens follow; markers in it are markers."""
    tokenizer, engine = service.engine.tokenizer, service.engine
    parts = [prompt] if isinstance(prompt, str) else prompt
    ids: list[int] = [tokenizer.bos_id] if isinstance(parts[0], str) and tokenizer.bos_id is not None else []
    for part in parts:
        ids += tokenizer.encode(part, special=True, most=engine.context) if isinstance(part, str) else [part]
    return read_prompt(engine, ids).ids


def _completions(
    service: Service, body: CompletionSettings, prompts: Sequence[list[int]]
) -> list["Completion"]:
    body.constraint(service)  # a grammar that cannot be used is refused before anything is answered
    choices = range(body.n_cmpl or 1)
    pairs = [(ids, choice) for ids in prompts for choice in choices]
    return [Completion(service, body, number, ids, choice) for number, (ids, choice) in enumerate(pairs)]


async def _respond(
    request: Request, body: CompletionSettings, made: list["Completion"], several: bool
) -> Response:
    service = service_of(request)
    runs = [completion.run() for completion in made]
    if body.stream:
        return await EventStream.open(
            _stream(runs, service.settings.parallel),
            service.settings.ping,
            lambda error: data(llamacpp_envelope(error)),
            lambda: sign_of_life([completion.usage for completion in made]) + "\n\n",
        )

    async def collect() -> None:
        async with aclosing(merged(runs, service.settings.parallel)) as updates:
            async for _ in updates:
                pass

    await unless_disconnected(request, collect())
    results = [completion.whole() for completion in made]
    return json_reply(results if several else results[0])


async def _stream(runs: list[AsyncGenerator[Json, None]], parallel: int) -> AsyncGenerator[str, None]:
    async with aclosing(merged(runs, parallel)) as updates:
        async for _, chunk in updates:
            yield data(chunk)


class Completion:
    """One continuation of one prompt: chunks while it runs, and what it was."""

    def __init__(self, service: Service, body: CompletionSettings, index: int, ids: list[int], choice: int):
        self.service, self.body, self.index, self.ids = service, body, index, ids
        self.usage = Usage(prompt=len(ids))
        self.sampling = body.sampling(service, choice)
        self.text, self.tokens, self.probabilities = "", list[int](), list[Json]()
        self.stop_type, self._stops = "none", StopStrings(body.stops)
        self._sent = 0  # characters of the text that a stream has told

    async def run(self) -> AsyncGenerator[Json, None]:
        held = self.body.held
        constraint = await self.service.work.run_costly(self.body.constraint, self.service) if held else None
        stream = self.service.complete(
            self.ids,
            max(self.body.limit, 1),  # also a prompt that is only read is read up to its first token
            self.sampling,
            self.usage,
            constraint=constraint,
        )
        async with aclosing(stream):
            async for update in stream:
                if isinstance(update, PrefillProgress):
                    if self.body.return_progress and self.body.stream:
                        yield {**self._chunk("", []), "prompt_progress": progress_object(update)}
                elif isinstance(update, Step):
                    chunk = self._take(update)
                    if self.body.stream and self.stop_type == "none":
                        self._sent = len(self.text)
                        yield chunk
                    if self.stop_type != "none":
                        break
        if self.body.stream:
            yield self.whole(last=True)

    def _take(self, step: Step) -> Json:
        if self.body.limit == 0:
            self.stop_type = "limit"
            self.usage.completion = 0
            return {}
        ends = step.finish_reason is not None
        shown = self._stops.push(step.text) + (self._stops.finish() if ends else "")
        is_end = step.finish_reason == "stop"
        probabilities = [] if is_end else [self._probability(step)] if self.body.n_probs else []
        if not is_end:
            self.tokens.append(step.token)
        self.text += shown
        self.probabilities += probabilities
        if self._stops.found is not None:
            self.stop_type = "word"
        elif is_end:
            self.stop_type = "eos"
        elif ends or self._out_of_time() or self._out_of_block():
            self.stop_type = "limit"
        return self._chunk(shown, [] if is_end else [step.token], probabilities)

    def _out_of_time(self) -> bool:
        most, first = self.body.t_max_predict_ms or 0, self.usage.first
        return (
            most > 0 and first is not None and "\n" in self.text and 1000 * (time.monotonic() - first) > most
        )

    def _out_of_block(self) -> bool:
        """A line that is indented less than it should be belongs to something else."""
        if not self.body.n_indent or "\n" not in self.text:
            return False
        line = self.text.rpartition("\n")[2]
        begun = line.lstrip(" \t")
        if not begun or len(line) - len(begun) >= self.body.n_indent:
            return False
        self.text = self.text.rpartition("\n")[0]
        return True

    def _chunk(self, text: str, tokens: list[int], probabilities: Sequence[Json] = ()) -> Json:
        chunk: Json = {
            "index": self.index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": -1 if self.body.id_slot is None else self.body.id_slot,
            "tokens_predicted": self.usage.completion,
            "tokens_evaluated": self.usage.prompt,
        }
        if probabilities:
            chunk["completion_probabilities"] = list(probabilities)
        if self.body.timings_per_token:
            chunk["timings"] = timings(self.usage)
        return chunk

    def whole(self, last: bool = False) -> Json:
        """All of it, or what a stream has still to tell."""
        wants_tokens = self.body.return_tokens and not last
        probabilities = [] if last else self.probabilities
        answer = {
            **self._chunk(
                self.text[self._sent :] if last else self.text,
                self.tokens if wants_tokens else [],
                probabilities,
            ),
            "stop": True,
            "model": self.service.settings.name,
            "generation_settings": self.body.echo(self.service, self.sampling),
            "prompt": self.service.engine.tokenizer.decode(self.ids),
            "has_new_line": "\n" in self.text,
            "truncated": False,
            "stop_type": self.stop_type,
            "stopping_word": self._stops.found or "",
            "tokens_cached": self.usage.cached,
            "timings": timings(self.usage),
        }
        return answer if self.body.response_fields is None else _only(answer, self.body.response_fields)

    def _probability(self, step: Step) -> Json:
        tokenizer = self.service.engine.tokenizer

        def entry(token: int, logprob: float) -> Json:
            raw = list(tokenizer.token_bytes(token))
            return {
                "id": token,
                "token": token_name(tokenizer, token),
                "bytes": raw,
                "logprob": finite(logprob),
            }

        top = [entry(token, logprob) for token, logprob in step.top_logprobs]
        return {**entry(step.token, step.logprob), "top_logprobs": top}


def _only(answer: Json, fields: Sequence[str]) -> Json:
    """
    >>> _only({"content": "x", "timings": {"prompt_n": 3}}, ["content", "timings/prompt_n", "other"])
    {'content': 'x', 'timings/prompt_n': 3}
    """
    found: Json = {}
    for field in fields:
        value: Any = answer
        for part in field.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            found[field] = value
    return found
