"""Bodies become values: JSON is parsed and checked on threads for such work, after a look at how much is in it."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from penstock.server.http.errors import ApiError
from penstock.server.http.json_pieces import MAX_CONTAINERS, check_structure, parse
from penstock.server.http.request_context import current_request
from penstock.server.http.strangers import is_json
from penstock.server.service import service_of

FEW_CONTAINERS: Final = 1 << 13  # objects and lists that any request may have
PARSED: Final = b"{}"  # stands for a body that nobody needs any more


class BodyRoute(APIRoute):
    """FastAPI would parse a body on the event loop.  Here it finds the value that was made elsewhere, and passes
    it on."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, field = super().get_route_handler(), self.body_field

        async def with_value(request: Request) -> Response:
            if field is not None and is_json(request.headers):
                await _read(request, field)
            try:
                return await handle(request)
            finally:
                context = current_request()
                if context is not None and context.room is not None:
                    context.room.shrink()

        return with_value


async def _read(request: Request, field: Any) -> None:
    try:
        body = await request.body()
    except ClientDisconnect:
        raise ApiError(499, "the client has gone") from None
    if not body:
        return
    service = service_of(request)
    context = service.engine.context
    # Where Starlette looks for them; the bytes are let go.
    request._json = await service.work.run(_value, field, body, context)
    request._body = PARSED


def _value(field: Any, body: bytes, context: int) -> Any:
    containers = min(max(FEW_CONTAINERS, context // 8), MAX_CONTAINERS)
    values = check_structure(body, containers + 2 * context, containers)
    try:
        parsed = parse(body, values)
    except (ValueError, RecursionError) as error:
        wrong = {"type": "json_invalid", "loc": ("body",), "msg": str(error), "input": {}}
        raise RequestValidationError([wrong]) from None
    value, errors = field.validate(parsed, {}, loc=("body",))
    if errors:
        raise RequestValidationError(errors if isinstance(errors, list) else [errors], body=parsed)
    return value
