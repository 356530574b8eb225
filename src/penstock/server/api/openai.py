"""What OpenAI's APIs have in common: the list of models, usage, log-probabilities, errors in a stream."""

from collections.abc import Sequence
from typing import Any, Final

from fastapi import APIRouter, Request

from penstock.server.api.shared import ALIASES
from penstock.server.http.errors import ApiError, openai_envelope
from penstock.server.http.streams import data
from penstock.server.service import Service, service_of
from penstock.server.usage import Usage
from penstock.tokenizer import Tokenizer

router = APIRouter()

IMPOSSIBLE: Final = -9999.0  # OpenAI's number for a probability of nothing: JSON has no infinity


def usage_object(usages: Sequence[Usage]) -> dict[str, Any]:
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


def failure_chunk(error: ApiError) -> str:
    return data(openai_envelope(error))


# There is one model; requests may call it what they like.


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    service = service_of(request)
    return {"object": "list", "data": [_card(service, service.settings.name)]}


@router.get("/v1/models/{name:path}")
async def show_model(name: str, request: Request) -> dict[str, Any]:
    service = service_of(request)
    if name != service.settings.name and name not in ALIASES:
        message = f"there is no model {name!r}; this server has {service.settings.name!r}"
        raise ApiError(404, message, code="model_not_found", param="model")
    return _card(service, name)


def _card(service: Service, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": service.created, "owned_by": "penstock"}
