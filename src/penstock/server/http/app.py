"""The web application: all endpoints, and the middleware around them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from penstock import __version__
from penstock.errors import PenstockError
from penstock.server.api import (
    anthropic,
    llamacpp,
    llamacpp_completion,
    llamacpp_slots,
    llamacpp_tokens,
    openai,
    openai_chat,
    openai_completions,
)
from penstock.server.api.ollama import answer as ollama_answer
from penstock.server.api.ollama import models as ollama_models
from penstock.server.api.responses import routes as responses
from penstock.server.http.connections import Connections, room_for_connections
from penstock.server.http.errors import ApiError, api_error, is_anthropic, respond
from penstock.server.http.head import HeadMiddleware
from penstock.server.http.invalid import first_fault, spelled
from penstock.server.http.limits import AccessMiddleware, BodyLimitMiddleware
from penstock.server.observe import dashboard, logs, metrics, request_trace
from penstock.server.page import page
from penstock.server.page.renderer import Renderer
from penstock.server.service import Service

ROUTERS: Final = [
    anthropic.router,
    responses.router,
    openai.router,
    openai_chat.router,
    openai_completions.router,
    llamacpp.router,
    llamacpp_slots.router,
    llamacpp_tokens.router,
    llamacpp_completion.router,
    ollama_answer.router,
    ollama_models.router,
    metrics.router,
    dashboard.router,
    page.router,
]

# For the description of the API.  "4XX" keeps FastAPI from naming its own 422, which nobody gets.
ERRORS: Final[dict[int | str, str]] = {
    400: "Something in the request is wrong; the message names it.",
    401: "The API key is missing or wrong.",
    403: "A web page from elsewhere asks.",
    404: "There is no such thing.",
    408: "The request did not arrive in time.",
    413: "The request is too large.",
    415: "The request is not said to be JSON.",
    421: "The request is for a server of another name.",
    429: "Too many requests wait already.",
    503: "The model is being loaded, or cannot be read.",
    504: "The request took too long.",
    "4XX": "The request is refused for another reason.",
}
NOT_HERE: Final = {
    404: "there is no such path; /docs lists those there are",
    405: "the path is there, but not for this method",
}
STREAMS: Final = {
    "text/event-stream": (
        *("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"),
        *("/completion", "/completions", "/infill"),
    ),
    "application/x-ndjson": ("/api/chat", "/api/generate", "/api/pull"),
}


def create_app(service: Service) -> FastAPI:
    """The application.  It starts and stops the service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            app.state.renderer.close()
            await asyncio.to_thread(service.stop)  # answers that are being sent must be able to end

    app = FastAPI(
        title="Penstock",
        version=__version__,
        lifespan=lifespan,
        responses=_described(),
        redirect_slashes=False,  # a redirection goes to whatever `Host` says
    )
    app.state.service = service
    app.state.renderer = Renderer()
    most = room_for_connections(service.settings.max_connections)
    app.state.connections = Connections(most, min(most, service.settings.max_connections_per_address))
    for router in ROUTERS:
        app.include_router(router)
    _describe_streams(app)
    _add_middleware(app, service)
    app.add_exception_handler(ApiError, _refused)  # type: ignore[arg-type]
    app.add_exception_handler(PenstockError, _failed)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    return app


def _described() -> dict[int | str, dict[str, Any]]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {status: {"description": text, "content": content} for status, text in ERRORS.items()}


def _describe_streams(app: FastAPI) -> None:
    describe = app.openapi

    def with_streams() -> dict[str, Any]:
        found = describe()
        for kind, paths in STREAMS.items():
            for path in paths:
                found["paths"][path]["post"]["responses"]["200"]["content"][kind] = {}
        return found

    app.openapi = with_streams  # type: ignore[method-assign]


def _add_middleware(app: FastAPI, service: Service) -> None:
    """From the inside out: those that are added later also see what the others refuse."""
    settings = service.settings
    app.add_middleware(HeadMiddleware)
    app.add_middleware(
        BodyLimitMiddleware, most=service.max_body, seconds=settings.body_timeout, work=service.work
    )
    app.add_middleware(AccessMiddleware, service=service)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id"],
        )
    metrics.attach(app, service)
    request_trace.attach(app, service)
    logs.attach(app, service)


async def _refused(request: Request, error: ApiError) -> Response:
    return respond(request.url.path, error)


async def _failed(request: Request, error: PenstockError) -> Response:
    return respond(request.url.path, api_error(error, request.url.path))


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    """The first thing that is wrong, by name."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return respond(request.url.path, ApiError(400, "the body is not valid JSON", code="invalid_json"))
    path, (place, message, code) = request.url.path, first_fault(error.errors(), error.body)
    field = spelled(place, dotted=is_anthropic(path))
    wrong = ApiError(400, f"{field or 'body'}: {message}", code=code, param=field or None)
    return respond(path, wrong)


async def _http(request: Request, error: HTTPException) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = str(error.detail)
    if error.status_code in NOT_HERE and message == HTTPStatus(error.status_code).phrase:  # the router's own
        message = f"{request.method} {request.url.path[:100]}: {NOT_HERE[error.status_code]}"
    return respond(request.url.path, ApiError(error.status_code, message, code=code))
