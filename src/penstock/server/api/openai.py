"""What OpenAI's APIs have in common: the list of models, choices, usage, log-probabilities."""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from penstock.server.api.shared import ALIASES, Json, SamplingFields
from penstock.server.http.errors import ApiError, openai_envelope
from penstock.server.http.streams import DONE, EventStream, data, merged, unless_disconnected
from penstock.server.service import Service, new_id, service_of
from penstock.server.usage import Usage, combined, sign_of_life, timings
from penstock.tokenizer import Tokenizer

router = APIRouter()

IMPOSSIBLE: Final = -9999.0  # OpenAI's number for a probability of nothing: JSON has no infinity


def usage_object(usages: Sequence[Usage]) -> Json:
    """Sums over prompts."""
    prompt = sum(usage.prompt for usage in usages)
    completion = sum(usage.completion for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached for usage in usages)},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning for usage in usages)},
    }


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""The token as text; one that is only part of a character as OpenAI writes it: `bytes:\xe4\xb8`."""
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    return max(logprob, IMPOSSIBLE)


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Choice(Protocol[T_co]):
    """One of the answers to a request: what it has used, and what happens to it."""

    usage: Usage

    def run(self) -> AsyncGenerator[T_co, None]: ...


C = TypeVar("C", bound=Choice[Any])


class Choices(ABC, Generic[C, T]):
    """All answers to a request, prompt after prompt, as a whole or in chunks.  prefix: of their id; whole, chunk:
    what the API calls the two."""

    prefix: ClassVar[str]
    whole: ClassVar[str]
    chunk: ClassVar[str]

    def __init__(self, service: Service, body: SamplingFields, choices: Sequence[C]):
        self.service, self.body, self.choices = service, body, choices
        self._id, self._created = new_id(self.prefix), int(time.time())

    @abstractmethod
    def note(self, choice: C, update: T) -> None:
        """Keeps what a whole choice needs of an update."""

    @abstractmethod
    def finished(self, choice: C) -> Json:
        """A choice that is over."""

    @abstractmethod
    def deltas(self, choice: C, update: T) -> Iterator[tuple[Json, Json]]:
        """What a stream tells of an update: the choice, and what stands beside it in the chunk."""

    async def respond(self, request: Request) -> Response:
        settings = self.service.settings
        if self.body.stream:
            return await EventStream.open(
                self._stream(),
                settings.ping,
                lambda error: data(openai_envelope(error)),
                lambda: sign_of_life([choice.usage for choice in self.choices]) + "\n\n",
            )
        return JSONResponse(await unless_disconnected(request, self._collect()))

    async def _collect(self) -> Json:
        async with aclosing(self._updates()) as updates:
            async for index, update in updates:
                self.note(self.choices[index], update)
        usages = self._usages()
        found = [{"index": index, **self.finished(choice)} for index, choice in enumerate(self.choices)]
        more = {"usage": usage_object(usages), "timings": timings(combined(usages))}
        return {**self._head(self.whole), "choices": found, **more}

    async def _stream(self) -> AsyncGenerator[str, None]:
        """What happens; usage if asked for; the end of the stream.  Timings stand in the last chunk only: clients
        that add up what chunks tell (Open WebUI) would count twice."""
        head = self._head(self.chunk)
        async with aclosing(self._updates()) as updates:
            async for index, update in updates:
                for delta, more in self.deltas(self.choices[index], update):
                    yield data({**head, "choices": [{"index": index, **delta}], **more})
        if self.body.wants_usage:
            usages = self._usages()
            more = {"usage": usage_object(usages), "timings": timings(combined(usages))}
            yield data({**head, "choices": [], **more})
        yield DONE

    def _updates(self) -> AsyncGenerator[tuple[int, T], None]:
        return merged([choice.run() for choice in self.choices], self.service.settings.parallel)

    def _usages(self) -> list[Usage]:
        """One for each prompt."""
        n, usages = self.body.choices, [choice.usage for choice in self.choices]
        return [combined(usages[begin : begin + n]) for begin in range(0, len(usages), n)]

    def _head(self, kind: str) -> Json:
        name = self.service.settings.name  # not what the client calls it: this is who answers
        same = f"fp_{self.service.engine.fingerprint[:12]}"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": name,
            "system_fingerprint": same,
        }


# There is one model; requests may call it what they like.


@router.get("/v1/models")
async def list_models(request: Request) -> Json:
    service = service_of(request)
    return {"object": "list", "data": [_card(service, service.settings.name)]}


@router.get("/v1/models/{name:path}")
async def show_model(name: str, request: Request) -> Json:
    service = service_of(request)
    if name != service.settings.name and name not in ALIASES:
        message = f"there is no model {name!r}; this server has {service.settings.name!r}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return _card(service, name)


def _card(service: Service, name: str) -> Json:
    """OpenAI's four fields, and how much the model can read: under vLLM's name for it and in llama.cpp's `meta`."""
    engine, config = service.engine, service.engine.config
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "penstock",
        "root": service.settings.name,
        "parent": None,
        "max_model_len": engine.context,
        "context_length": engine.context,
        "meta": {
            "n_ctx": engine.context,
            "n_ctx_train": config.context_length,
            "n_vocab": config.vocab_size,
            "n_embd": config.hidden,
            "n_params": service.model_size.parameters,
            "size": service.model_size.bytes,
        },
    }
