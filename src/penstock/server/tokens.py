"""llama.cpp's tokens and prompts: /tokenize, /detokenize, /apply-template."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, StrictBool, StrictInt, StrictStr

from penstock.server.openai_chat_request import ChatRequest
from penstock.server.service import service_of
from penstock.tokenizer import Tokenizer

router = APIRouter()


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
    tokenizer = service_of(request).engine.tokenizer
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
    return {"content": service_of(request).engine.tokenizer.decode(body.tokens)}


@router.post("/apply-template")
def apply_template(request: Request, body: ChatRequest) -> dict[str, str]:
    """The prompt that /v1/chat/completions would make of the same request, for people to read: as text, a marker
    cannot be told from its spelling in a message."""
    prompt, _ = service_of(request).encode(body.conversation(), force_call=body.forces_call)
    return {"prompt": prompt.text}
