"""/v1/responses, and what can be done with a response that is kept."""

import time
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from penstock.errors import PenstockError
from penstock.server.api.responses.answer import Answer
from penstock.server.api.responses.items import KEPT, Known, Reference, as_kept
from penstock.server.api.responses.request import InputRequest, ResponsesRequest
from penstock.server.api.responses.store import Kept, ResponseStore, not_found
from penstock.server.api.shared import Json, TurnUpdates, refusal
from penstock.server.http.bodies import BodyRoute
from penstock.server.http.errors import ApiError
from penstock.server.http.request_context import current_request
from penstock.server.http.streams import EventStream, json_reply, named_event, unless_disconnected
from penstock.server.service import Service, service_of
from penstock.server.usage import Usage, sign_of_life

router = APIRouter(route_class=BodyRoute)
RESPONSE_DIGITS = 32  # of a response's id, and then of those of its items


def owner() -> str:
    """Whose responses the request that this task works for can see."""
    context = current_request()
    return "" if context is None else context.owner


def _all_items(store: ResponseStore, body: InputRequest) -> list[Known]:
    """What a request goes on from, and its own items; those that it only refers to are looked up."""
    items: list[Known] = []
    if body.previous_response_id is not None:
        id = body.previous_response_id
        kept = store.find(owner(), id)
        before = None if kept is None else _validated([*kept.input, *kept.response["output"]])
        if before is None:
            text = f"Previous response with id '{id[:100]}' not found."
            raise ApiError(400, text, code="previous_response_not_found", param="previous_response_id")
        items += before
    for number, item in enumerate(body.input):
        items.append(_referred(store, item, number) if isinstance(item, Reference) else item)
    return items


def _referred(store: ResponseStore, reference: Reference, number: int) -> Known:
    """An item's id begins like that of its response (`answer.item_id`)."""
    digits = reference.id.partition("_")[2][:RESPONSE_DIGITS]
    kept = store.find(owner(), f"resp_{digits}")
    found = _validated(
        [item for item in kept.response["output"] if item["id"] == reference.id] if kept else []
    )
    if not found:
        text = f"Item with id '{reference.id[:100]}' not found."
        raise ApiError(404, text, param=f"input[{number}].id")
    return found[0]


def _validated(items: list[Json]) -> list[Known] | None:
    """Items that were kept; None if they are none: somebody else has written to the file."""
    try:
        return KEPT.validate_python(items)
    except ValidationError:
        return None


@router.post("/v1/responses", response_model=None)
async def responses(body: ResponsesRequest, request: Request) -> Response:
    service = service_of(request)
    usage = Usage()

    def prepare() -> tuple[list[Known], Any]:
        items = _all_items(service.responses, body)
        return items, service.reply(body.chat(items), body.sampling(), forced=body.offer().force)

    items, reply = await service.work.run(prepare)
    turn = service.run(reply, body.max_output_tokens or service.settings.max_tokens, usage)
    answer = Answer(service.settings.name, int(time.time()), body.echo(), usage, body.called)
    if body.keeps:
        turn = _kept(service, turn, answer, items)
    if body.stream:
        failure = lambda error: named_event(answer.fail(error))  # noqa: E731
        alive = lambda: sign_of_life([usage]) + "\n\n"  # noqa: E731
        return await EventStream.open(answer.stream(turn), service.settings.ping, failure, alive)
    return json_reply(await unless_disconnected(request, answer.collect(turn)))


async def _kept(service: Service, turn: TurnUpdates, answer: Answer, items: list[Known]) -> TurnUpdates:
    """The turn, after which the response is kept: its last event may be what a client goes on from at once."""
    async with aclosing(turn):
        async for update in turn:
            yield update
    whose, response = owner(), answer.response

    def keep() -> bool:
        return service.responses.keep(whose, Kept(response, as_kept(items)))

    try:
        response["store"] = await service.work.run(keep)
    except (ApiError, PenstockError):  # too many others wait: the answer counts more
        response["store"] = False


@router.post("/v1/responses/input_tokens", response_model=None)
async def input_tokens(body: InputRequest, request: Request) -> Response:
    service = service_of(request)

    def count() -> int:
        conversation = body.chat(_all_items(service.responses, body))
        return service.driver.count(conversation, forced=body.offer().force)

    return json_reply({"object": "response.input_tokens", "input_tokens": await service.work.run(count)})


@router.get("/v1/responses/{response_id}", response_model=None)
async def retrieve(response_id: str, request: Request, stream: bool = False) -> Response:
    if stream:
        raise refusal("stream", "not supported: a response that is kept comes as a whole")
    return json_reply((await _found(request, response_id)).response)


@router.delete("/v1/responses/{response_id}", response_model=None)
async def delete(response_id: str, request: Request) -> Response:
    service = service_of(request)
    if not await service.work.run(service.responses.remove, owner(), response_id):
        raise not_found(response_id)
    return json_reply({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel", response_model=None)
async def cancel(response_id: str, request: Request) -> Response:
    await _found(request, response_id)
    raise ApiError(400, "Cannot cancel a synchronous response.")


@router.get("/v1/responses/{response_id}/input_items", response_model=None)
async def input_items(
    response_id: str,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """Items that a response answers, those of the responses before it included, a page at a time."""
    items = (await _found(request, response_id)).input
    if order == "desc":
        items = items[::-1]
    if after is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise ApiError(404, f"Item with id '{after[:100]}' not found.", param="after")
        items = items[places[0] + 1 :]
    return json_reply(_page(items, limit))


def _page(items: list[Json], limit: int) -> Json:
    page = items[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": len(items) > limit}


async def _found(request: Request, id: str) -> Kept:
    service = service_of(request)
    kept = await service.work.run(service.responses.find, owner(), id)
    if kept is None:
        raise not_found(id)
    return kept
