"""What llama.cpp's own clients ask for: health, properties, slots, tokens and prompts."""

import asyncio
import json
import re
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from penstock import __version__
from penstock.engine.requests import SlotState
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.errors import SnapshotError
from penstock.machine.private import private_folder
from penstock.option import effective
from penstock.server.api.openai_chat_request import ChatRequest
from penstock.server.api.shared import refusal
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError, llamacpp_envelope
from penstock.server.service import Service, service_of
from penstock.tokenizer import Tokenizer

PARKING: Final = 10.0  # seconds that a client who asks for it waits
WRITTEN: Final = 4096  # tokens that are written as JSON at a time
SLOT_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
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


# ── slots: what is being answered, and sessions that are saved and restored by name ──────────────────────────


@router.get("/slots")
async def slots(request: Request, fail_on_no_slot: bool = False) -> list[dict[str, Any]]:
    """One entry for each request that can be answered at a time.  Busy ones come first: a request has no slot of its
    own, so the entries move up when one ends."""
    service = service_of(request)
    busy = service.scheduler.snapshot()
    count = service.settings.parallel
    if fail_on_no_slot and len(busy) >= count:
        raise ApiError(503, f"all {count} slots are busy", code="unavailable")
    found = [_slot(service, number, progress) for number, progress in enumerate(busy[:count])]
    return found + [_slot(service, number, None) for number in range(len(found), count)]


def _slot(service: Service, number: int, progress: SlotState | None) -> dict[str, Any]:
    slot: dict[str, Any] = {
        "id": number,
        "n_ctx": service.engine.context,
        "speculative": False,
        "is_processing": progress is not None,
    }
    if progress is not None:
        slot |= {
            "n_prompt_tokens": progress.prompt,
            "n_prompt_tokens_processed": progress.read - progress.cached,
            "n_prompt_tokens_cache": progress.cached,
            "next_token": [
                {"has_next_token": True, "n_remain": progress.remaining, "n_decoded": progress.decoded}
            ],
        }
    return slot


class SlotBody(BaseModel):
    filename: StrictStr = ""


@router.post("/slots/{id_slot}")
async def act_on_slot(
    request: Request,
    id_slot: Annotated[int, Path(ge=0)],
    action: Literal["save", "restore", "erase"],
    body: SlotBody | None = None,
) -> dict[str, Any]:
    """Idle sessions belong to whoever continues them, not to a slot.  Slot n is the session that was used n sessions
    before the latest; `restore` makes one the latest again, and `erase` forgets all of them."""
    service = service_of(request)
    if id_slot >= service.settings.parallel:
        raise ApiError(
            400, f"slot {id_slot}: there are slots 0 to {service.settings.parallel - 1}", param="id_slot"
        )
    if action == "erase":
        return {"id_slot": id_slot, "n_erased": service.scheduler.prefix_cache.clear()}
    return await service.work.run_costly(_keep, service, id_slot, action, _slot_file(service, body))


def _keep(service: Service, id_slot: int, action: str, file: "_SlotFile") -> dict[str, Any]:
    begin = time.monotonic()
    if action == "save":
        session = _idle_session(service, id_slot)
        _make_room(service, session.snapshot().nbytes)
        private_folder(file.path.parent)
        session.save(file.path)
    else:
        session = _restored(service, file)
        service.scheduler.prefix_cache.give(session)
    spent = {f"{action}_ms": 1000 * (time.monotonic() - begin)}
    counts = {
        "n_saved" if action == "save" else "n_restored": session.position,
        "n_written" if action == "save" else "n_read": file.path.stat().st_size,
    }
    return {"id_slot": id_slot, "filename": file.name, **counts, "timings": spent}


class _SlotFile(NamedTuple):
    name: str
    path: FilePath


def _slot_file(service: Service, body: SlotBody | None) -> _SlotFile:
    """A file of that name below the folder for sessions, never anywhere else."""
    folder, name = service.settings.kv_dir, body.filename if body else ""
    if folder is None:
        raise ApiError(400, "the server was started without --kv-dir, so there is no place to save to")
    if not SLOT_NAME.fullmatch(name):
        raise refusal("filename", f"{name[:80]!r} is not a name of letters, digits, '.', '-' and '_'")
    return _SlotFile(name, folder / "slots" / name)


def _make_room(service: Service, nbytes: int) -> None:
    """Sessions saved by name are inside the server's disk space, and are never given up for others."""
    disk = service.scheduler.prefix_cache.disk
    if disk is not None:
        try:
            disk.store.make_room(nbytes)
        except SnapshotError as error:
            raise ApiError(507, f"--kv-space: {error}", code="insufficient_storage") from None


def _idle_session(service: Service, number: int) -> Session:
    cache = service.scheduler.prefix_cache
    session = cache.copy(number)
    if session is None:
        raise ApiError(400, f"slot {number}: only {len(cache)} sessions are idle", param="id_slot")
    return session


def _restored(service: Service, file: _SlotFile) -> Session:
    if not file.path.exists():
        raise ApiError(404, f"filename: there is no {file.name!r}", code="not_found", param="filename")
    try:
        return service.engine.load_session(file.path)
    except SnapshotError as error:
        reason = str(error).removeprefix(f"{file.path}: ")
        raise refusal("filename", f"{file.name}: {reason}") from None


# ── tokens and prompts ───────────────────────────────────────────────────────────────────────────────────


class TokenizeBody(BaseModel):
    """content: text, or texts and token ids mixed.  add_special: begin with BOS.  parse_special: a marker's
    spelling becomes the marker."""

    content: StrictStr | list[StrictStr | StrictInt]
    add_special: StrictBool = False
    parse_special: StrictBool = True
    with_pieces: StrictBool = False


class DetokenizeBody(BaseModel):
    tokens: list[StrictInt]


@router.post("/tokenize", response_model=None)
async def tokenize(request: Request, body: TokenizeBody) -> Response:
    """Sent as it is written: as JSON in memory, the tokens of a large text take fifty times its bytes."""
    service = service_of(request)
    tokenizer, with_pieces = service.engine.tokenizer, body.with_pieces
    ids = await service.work.run(_tokens, tokenizer, body)

    async def written() -> AsyncIterator[str]:
        before = '{"tokens":['
        for begin in range(0, len(ids), WRITTEN):
            yield before + await service.work.run(
                _write, tokenizer, ids[begin : begin + WRITTEN], with_pieces
            )
            before = ","
        yield "]}" if ids else before + "]}"

    if len(ids) <= WRITTEN:
        return Response("".join([part async for part in written()]), media_type="application/json")
    return StreamingResponse(written(), media_type="application/json")


def _tokens(tokenizer: Tokenizer, body: TokenizeBody) -> "array[int]":
    ids = array("i", [tokenizer.bos_id] if body.add_special and tokenizer.bos_id is not None else [])
    for part in [body.content] if isinstance(body.content, str) else body.content:
        if isinstance(part, str):
            for some in tokenizer.encode_parts(part, special=body.parse_special):
                ids.extend(some)
        else:
            tokenizer.token_bytes(part)  # refuses ids that the vocabulary does not have
            ids.append(part)
    return ids


def _write(tokenizer: Tokenizer, ids: Sequence[int], with_pieces: bool) -> str:
    if not with_pieces:
        return ",".join(map(str, ids))
    pieces = [{"id": token, "piece": _piece(tokenizer, token)} for token in ids]
    return json.dumps(pieces, separators=(",", ":"))[1:-1]


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """A token's text, or its bytes if it is only a part of a character."""
    text = tokenizer.token_bytes(token)
    try:
        return text.decode()
    except UnicodeDecodeError:
        return list(text)


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeBody) -> dict[str, str]:
    service = service_of(request)
    return {"content": await service.work.run(service.engine.tokenizer.decode, body.tokens)}


@router.post("/apply-template")
async def apply_template(request: Request, body: ChatRequest) -> dict[str, str]:
    """The prompt that /v1/chat/completions would make of the same request, for people to read: as text, a marker
    cannot be told from its spelling in a message."""
    service = service_of(request)
    prompt = await service.work.run(lambda: service.driver.render(body.conversation(), **body.rendering()))
    return {"prompt": prompt.text}
