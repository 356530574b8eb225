"""llama.cpp's way between text, tokens and prompts."""

import json
from array import array
from collections.abc import AsyncIterator, Sequence
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, StrictBool, StrictInt, StrictStr

from penstock.server.api.openai_chat_request import ChatRequest
from penstock.server.http.bodies import BodyRoute
from penstock.server.service import service_of
from penstock.tokenizer import Tokenizer

WRITTEN: Final = 4096  # tokens that are written as JSON at a time

router = APIRouter(route_class=BodyRoute)


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
