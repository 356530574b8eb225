"""What Ollama's clients ask about models.  There is one; nothing can be added, copied or deleted."""

from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from penstock import __version__
from penstock.server.api.ollama.answer import when
from penstock.server.api.shared import ALIASES, Body, Json
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError
from penstock.server.http.streams import json_line, json_reply
from penstock.server.service import Service, service_of

router = APIRouter(route_class=BodyRoute)

SPOKEN: Final = "0.13.0"  # the version whose API this is: clients look whether it is new enough for them
CAPABILITIES: Final = ["completion", "tools", "thinking", "insert"]
SIZES: Final = (("B", 1e9), ("M", 1e6), ("K", 1e3))


class NamedBody(Body):
    """Old clients say `name`."""

    model: str = ""
    name: str = ""
    verbose: bool | None = None
    stream: bool | None = None

    def check(self, service: Service) -> None:
        wanted = self.model or self.name
        own = service.settings.name
        if wanted.removesuffix(":latest") not in (own, own.removesuffix(":latest"), *ALIASES):
            raise ApiError(
                404, f"model '{wanted[:100]}' not found; this server has '{own}'", code="not_found"
            )


class EmbedBody(Body):
    model: str = ""
    input: Any = Field(default=None)
    prompt: Any = Field(default=None)


@router.get("/api/version")
async def version() -> Json:
    return {"version": SPOKEN, "penstock": __version__}


@router.get("/api/tags")
async def tags(request: Request) -> Json:
    return {"models": [_card(service_of(request))]}


@router.get("/api/ps")
async def running(request: Request) -> Json:
    """What is in memory."""
    service = service_of(request)
    if service.engine.parked or service.state != "ready":
        return {"models": []}
    never = "9999-12-31T23:59:59Z"
    more = {"expires_at": never, "size_vram": 0, "context_length": service.engine.context}
    return {"models": [_card(service) | more]}


@router.post("/api/show")
async def show(body: NamedBody, request: Request) -> Json:
    service = service_of(request)
    body.check(service)
    config, engine = service.engine.config, service.engine
    family = _family(service)
    return {
        "modelfile": f"FROM {service.settings.name}",
        "parameters": f"num_ctx {engine.context}",
        "template": f"{service.driver.format.name} (built in)",
        "details": _details(service),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": service.model_size.parameters,
            f"{family}.context_length": engine.context,
            f"{family}.embedding_length": config.hidden,
            f"{family}.block_count": config.layer_count,
            f"{family}.attention.head_count": config.heads,
            f"{family}.expert_count": config.experts,
            f"{family}.expert_used_count": config.experts_used,
            f"{family}.vocab_size": config.vocab_size,
        },
        "capabilities": CAPABILITIES,
        "modified_at": when(service.created),
    }


@router.post("/api/pull", response_model=None)
async def pull(body: NamedBody, request: Request) -> Response:
    """The model that is here need not be fetched."""
    body.check(service_of(request))
    done = {"status": "success"}
    return (
        json_reply(done)
        if body.stream is False
        else Response(json_line(done), media_type="application/x-ndjson")
    )


@router.post("/api/embed", response_model=None)
@router.post("/api/embeddings", response_model=None)
@router.post("/v1/embeddings", response_model=None)
async def embed(_: EmbedBody) -> JSONResponse:
    text = "this model does not support embeddings: it writes text, and has no vectors for it"
    raise ApiError(400, text, code="unsupported_value")


def _card(service: Service) -> Json:
    name = service.settings.name
    return {
        "name": name,
        "model": name,
        "modified_at": when(service.created),
        "size": service.model_size.bytes,
        "digest": service.engine.fingerprint[:32].ljust(64, "0"),
        "details": _details(service),
    }


def _details(service: Service) -> Json:
    family = _family(service)
    return {
        "parent_model": "",
        "format": "gguf" if service.engine.checkpoint.metadata else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": short_count(service.model_size.parameters),
        "quantization_level": service.model_size.kind,
    }


def _family(service: Service) -> str:
    return str(service.engine.checkpoint.metadata.get("general.architecture", "deepseek4"))


def short_count(parameters: int) -> str:
    """
    >>> short_count(284_300_000_000), short_count(21_400_000), short_count(12)
    ('284.3B', '21.4M', '12')
    """
    for letter, size in SIZES:
        if parameters >= size:
            return f"{parameters / size:.1f}{letter}"
    return str(parameters)
