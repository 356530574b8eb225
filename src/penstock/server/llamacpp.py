"""What llama.cpp's own clients and watchers ask for: health and properties."""

import time
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, StrictBool

from penstock import __version__
from penstock.engine.sampling import Sampling
from penstock.option import effective
from penstock.server.errors import ApiError, llamacpp_envelope
from penstock.server.service import Service, service_of

PARKING: Final = 10.0  # seconds that a client who asks for it waits
CHAT_FORMAT: Final = "deepseek-v4 (built in)"  # prompts are not made from a template that a client could run
CHAT_ABILITIES: Final = {
    "supports_string_content": True,
    "supports_typed_content": True,
    "supports_system_role": True,
    "supports_tools": True,
    "supports_tool_calls": True,
    "supports_parallel_tool_calls": True,
    "supports_preserve_reasoning": True,
}

router = APIRouter()


@router.get("/health")
@router.get("/v1/health")
def health(request: Request) -> JSONResponse:
    """200 once requests are answered; "parked": the next one has to wait for the weights."""
    service = service_of(request)
    state, loading = service.state, service.engine.loading
    progress = {} if loading is None else {"progress": round(loading.share, 4)}
    if state in ("loading", "failed"):
        message = "Loading model" if state == "loading" else "The model could not be read; the log says why"
        return JSONResponse(llamacpp_envelope(ApiError(503, message)) | progress, 503)
    return JSONResponse({"status": "ok" if state == "ready" else state} | progress)


@router.get("/props")
def properties(request: Request) -> dict[str, Any]:
    service = service_of(request)
    engine = service.engine
    storage = {name: value for name, value in engine.stats().items() if name != "blocks"}
    return {
        "default_generation_settings": {"n_ctx": engine.context, "params": _defaults(service)},
        "total_slots": service.settings.parallel,
        "model_alias": service.settings.name,
        "model_path": str(engine.checkpoint.path),
        "chat_template": CHAT_FORMAT,
        "chat_template_caps": CHAT_ABILITIES,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"penstock-{__version__}",
        "is_sleeping": engine.parked,
        "penstock": {
            "state": service.state,
            "parked": engine.parked,
            "options": effective(engine.options, engine),
            "settings": effective(service.settings),
            "plan": engine.plan.as_dict(),
            "storage": storage,
            "sessions": _sessions(service),
            "scheduler": _scheduler(service),
            "fingerprint": engine.fingerprint,
            "speculation": None,
        },
    }


class PropsBody(BaseModel):
    parked: StrictBool


@router.post("/props")
def change_properties(request: Request, body: PropsBody) -> dict[str, Any]:
    """Lets the weights leave memory, once nobody needs them, or brings them back.  Answers when that is done, or
    soon: `state` says which."""
    service = service_of(request)
    if body.parked and service.engine.options.trace is not None:
        raise ApiError(
            400,
            "parked: a server that records a trace cannot be parked",
            code="invalid_value",
            param="parked",
        )
    service.scheduler.park(body.parked)
    deadline = time.monotonic() + PARKING
    while service.engine.parked != body.parked and time.monotonic() < deadline:
        time.sleep(0.02)
    return {"parked": service.engine.parked, "state": service.state}


def _sessions(service: Service) -> dict[str, Any]:
    pool = service.scheduler.pool
    found: dict[str, Any] = {
        "kept": len(pool),
        "bytes": pool.bytes,
        "in_use": pool.in_use,
        "budget": pool.budget,
    }
    if pool.shelf is not None:
        store = pool.shelf.store
        found["disk"] = {"kept": len(store), "bytes": store.bytes, "budget": store.space}
    return found


def _scheduler(service: Service) -> dict[str, Any]:
    scheduler = service.scheduler
    names = ("active", "waiting", "steps", "busy_rows", "paused", "engine_seconds")
    return {name: getattr(scheduler, name) for name in names}


def _defaults(service: Service) -> dict[str, Any]:
    """How tokens are chosen if a request does not say, under llama.cpp's names."""
    default = Sampling()
    return {
        "n_predict": service.settings.max_tokens,
        "seed": -1,  # another one for every request
        "temperature": default.temperature,
        "top_k": default.top_k,
        "top_p": default.top_p,
        "min_p": default.min_p,
        "repeat_penalty": default.repetition_penalty,
        "presence_penalty": default.presence_penalty,
        "frequency_penalty": default.frequency_penalty,
        "stop": list(default.stop),
    }
