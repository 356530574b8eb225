"""What llama.cpp's own clients ask of a server first: its health and its properties."""

import asyncio
import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, StrictBool

from penstock import __version__
from penstock.engine.sampling import Sampling
from penstock.option import effective
from penstock.server.api.shared import refusal
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError, llamacpp_envelope
from penstock.server.service import Service, service_of

PARKING: Final = 10.0  # seconds that a client who asks for it waits
CHAT_ABILITIES: Final = {
    "supports_string_content": True,
    "supports_typed_content": True,
    "supports_system_role": True,
    "supports_tools": True,
    "supports_tool_calls": True,
    "supports_parallel_tool_calls": True,
    "supports_preserve_reasoning": True,
}

router = APIRouter(route_class=BodyRoute)


@router.get("/health")
@router.get("/v1/health")
async def health(request: Request) -> JSONResponse:
    """200 once requests are answered; "parked": the next one has to wait for the weights."""
    service = service_of(request)
    state, loading = service.state, service.engine.loading
    progress = {} if loading is None else {"progress": round(loading.share, 4)}
    if state in ("loading", "failed"):
        message = "Loading model" if state == "loading" else "The model cannot be run; the log says why"
        return JSONResponse(llamacpp_envelope(ApiError(503, message)) | progress, 503)
    return JSONResponse({"status": "ok" if state == "ready" else state} | progress)


@router.get("/props")
async def properties(request: Request) -> dict[str, Any]:
    service = service_of(request)
    engine = service.engine
    stats = engine.stats()
    storage = {name: value for name, value in stats.items() if name not in ("blocks", "draft")}
    return {
        "default_generation_settings": {"n_ctx": engine.context, "params": _defaults(service)},
        "total_slots": service.settings.parallel,
        "model_alias": service.settings.name,
        "model_path": str(engine.checkpoint.path.absolute()),
        "chat_template": f"{service.driver.format.name} (built in)",  # no template that a client could run
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
            "speculation": stats.get("draft"),
        },
    }


class PropsBody(BaseModel):
    parked: StrictBool | None = None
    pin: Annotated[str, Field(strict=True, pattern=r"^[a-z0-9-]{1,64}$")] | None = None


@router.post("/props")
async def change_properties(request: Request, body: PropsBody) -> dict[str, Any]:
    """parked: lets the weights leave memory, once nobody needs them, or brings them back.  Answers when that is done,
    or soon: `state` says which.  pin: system prompts that come within the next half minute are kept under this label
    when others leave; `pins` counts those that came, `pinned` says what is kept, in tokens."""
    service = service_of(request)
    if body.parked is None and body.pin is None:
        raise refusal("parked", "expected `parked` or `pin`")
    if body.pin is not None:
        service.pin(body.pin)
    if body.parked and service.engine.options.trace is not None:
        raise refusal("parked", "a server that records a trace cannot be parked")
    if body.parked is not None:
        service.scheduler.park(body.parked)
        deadline = time.monotonic() + PARKING
        while service.engine.parked != body.parked and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
    answer = {"parked": service.engine.parked, "state": service.state}
    if body.pin is not None:
        answer |= {"pins": service.pins, "pinned": service.scheduler.prefix_cache.pinned()}
    return answer


def _sessions(service: Service) -> dict[str, Any]:
    cache = service.scheduler.prefix_cache
    found: dict[str, Any] = {
        "kept": len(cache),
        "bytes": cache.bytes,
        "in_use": cache.in_use,
        "budget": cache.budget,
        "pinned": cache.pinned(),
    }
    if cache.disk is not None:
        store = cache.disk.store
        found["disk"] = {"kept": len(store), "bytes": store.bytes, "budget": store.space}
    return found


def _scheduler(service: Service) -> dict[str, Any]:
    scheduler = service.scheduler
    counts = ("steps", "busy_rows", "paused", "engine_seconds")
    return {
        "active": scheduler.active,
        "waiting": scheduler.waiting,
        **{name: getattr(scheduler.loop, name) for name in counts},
        "prefill_per_second": service.prefill_speed.per_second,
    }


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
