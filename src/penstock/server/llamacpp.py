"""What llama.cpp's own clients and watchers ask for: health, properties, slots, tokens, the prompt of a chat."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, StrictBool, StrictInt, StrictStr

from penstock import __version__
from penstock.chat.render import render
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Progress
from penstock.engine.session_pool import SessionPool
from penstock.server.errors import ApiError
from penstock.server.openai_chat_request import ChatRequest
from penstock.server.service import Service
from penstock.tokenizer import Tokenizer

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


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


# ── the server ────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/health")
@router.get("/v1/health")
def health() -> dict[str, str]:
    return {"status": "ok"}


@router.get("/props")
def properties(request: Request) -> dict[str, Any]:
    service = _service(request)
    engine, pool = service.engine, service.scheduler.pool
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
        "is_sleeping": False,
        "penstock": {
            "plan": engine.plan.as_dict(),
            "storage": storage,
            "sessions": {"kept": len(pool), "bytes": pool.bytes, "budget": pool.budget},
            "fingerprint": engine.fingerprint,
            "parked": False,
        },
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


# ── slots ─────────────────────────────────────────────────────────────────────────────────────────────────


@router.get("/slots")
def slots(request: Request, fail_on_no_slot: bool = False) -> list[dict[str, Any]]:
    """One entry for each request that can be answered at a time.  Busy ones come first: a request has no slot of its
    own, so the entries move up when one ends."""
    service = _service(request)
    busy = service.scheduler.snapshot()
    count = service.settings.parallel
    if fail_on_no_slot and len(busy) >= count:
        raise ApiError(503, f"all {count} slots are busy", code="unavailable")
    found = [_slot(service, number, progress) for number, progress in enumerate(busy[:count])]
    return found + [_slot(service, number, None) for number in range(len(found), count)]


def _slot(service: Service, number: int, progress: Progress | None) -> dict[str, Any]:
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


@router.post("/slots/{id_slot}")
def act_on_slot(
    request: Request, id_slot: Annotated[int, Path(ge=0)], action: Literal["save", "restore", "erase"]
) -> dict[str, int]:
    """Idle sessions belong to whoever continues them, not to a slot: `erase` forgets all of them."""
    service = _service(request)
    if id_slot >= service.settings.parallel:
        raise ApiError(
            400, f"slot {id_slot}: there are slots 0 to {service.settings.parallel - 1}", param="id_slot"
        )
    if action != "erase":
        raise ApiError(400, f"action {action!r} is not supported yet, only 'erase' is", param="action")
    # The scheduler's thread may be using the pool, so it gets another one instead of being disturbed.
    scheduler = service.scheduler
    forgotten, scheduler.pool = scheduler.pool, SessionPool(service.engine, scheduler.pool.budget)
    return {"id_slot": id_slot, "n_erased": len(forgotten)}


# ── tokens and prompts ────────────────────────────────────────────────────────────────────────────────────


class TokenizeBody(BaseModel):
    """content: text, or texts and token ids mixed.  add_special: begin with BOS.  parse_special: a marker's
    spelling becomes the marker."""

    content: StrictStr | list[StrictStr | StrictInt]
    add_special: StrictBool = False
    parse_special: StrictBool = True
    with_pieces: StrictBool = False


class DetokenizeBody(BaseModel):
    tokens: list[StrictInt]


@router.post("/tokenize")
def tokenize(request: Request, body: TokenizeBody) -> dict[str, Any]:
    tokenizer = _service(request).engine.tokenizer
    ids = [tokenizer.bos_id] if body.add_special and tokenizer.bos_id is not None else []
    for part in [body.content] if isinstance(body.content, str) else body.content:
        ids += tokenizer.encode(part, special=body.parse_special) if isinstance(part, str) else [part]
    pieces = [_piece(tokenizer, token) for token in ids]  # refuses ids that the vocabulary does not have
    if not body.with_pieces:
        return {"tokens": ids}
    return {"tokens": [{"id": token, "piece": piece} for token, piece in zip(ids, pieces, strict=True)]}


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """A token's text, or its bytes if it is only a part of a character."""
    text = tokenizer.token_bytes(token)
    try:
        return text.decode()
    except UnicodeDecodeError:
        return list(text)


@router.post("/detokenize")
def detokenize(request: Request, body: DetokenizeBody) -> dict[str, str]:
    return {"content": _service(request).engine.tokenizer.decode(body.tokens)}


@router.post("/apply-template")
def apply_template(body: ChatRequest) -> dict[str, str]:
    """The prompt that /v1/chat/completions would make of the same request, for people to read: as text, a marker
    cannot be told from its spelling in a message."""
    return {"prompt": render(body.conversation(), force_call=body.forces_call).text}
