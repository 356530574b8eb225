"""The web application: doors, limits and errors for all APIs; endpoints are in modules of their own."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from penstock import __version__
from penstock.errors import PenstockError
from penstock.server import metrics, routes
from penstock.server.errors import (
    ApiError,
    anthropic_envelope,
    api_error,
    llamacpp_envelope,
    openai_envelope,
)
from penstock.server.service import Service

OPEN: Final = ("/health", "/v1/health")  # whoever watches a server needs no key
RETRY_AFTER: Final = "2"  # seconds


def create_app(service: Service) -> FastAPI:
    """The application.  It starts and stops the service."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.stop)  # answers that are being sent must be able to end

    app = FastAPI(title="Penstock", version=__version__, lifespan=life)
    app.state.service = service
    for router in routes.ALL:
        app.include_router(router)
    _refuse_strangers(app, service)
    if service.settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.settings.cors),
            allow_methods=["*"],
            allow_headers=["*"],
        )
    metrics.attach(app, service)  # outermost: it also counts what the doors refuse
    app.add_exception_handler(ApiError, lambda request, error: respond(request, error))
    app.add_exception_handler(PenstockError, lambda request, error: respond(request, api_error(error)))
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    return app


def envelope(path: str, error: ApiError) -> dict[str, Any]:
    """The error in the words of the API that the path belongs to."""
    if path.startswith("/v1/messages"):
        return anthropic_envelope(error)
    if path.startswith("/v1/"):
        return openai_envelope(error)
    return llamacpp_envelope(error)


def respond(request: Request, error: ApiError) -> JSONResponse:
    headers = {"Retry-After": RETRY_AFTER} if error.status in (429, 503) else {}
    return JSONResponse(envelope(request.url.path, error), error.status, headers)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    """The first thing that is wrong, by name."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return respond(request, ApiError(400, "the body is not valid JSON", code="invalid_json"))
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    message = f"{field or 'body'}: {first['msg']}"
    return respond(request, ApiError(400, message, code="invalid_value", param=field or None))


async def _http(request: Request, error: HTTPException) -> Response:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return respond(request, ApiError(error.status_code, str(error.detail), code=code))


def _refuse_strangers(app: FastAPI, service: Service) -> None:
    settings = service.settings

    @app.middleware("http")
    async def doors(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        if settings.api_keys and request.url.path not in OPEN and not _has_key(request, settings.api_keys):
            return respond(request, ApiError(401, "the API key is missing or wrong", code="invalid_api_key"))
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > settings.max_body:
            message = f"the request has {length} bytes, {settings.max_body:,} are allowed"
            return respond(request, ApiError(413, message, code="request_too_large"))
        return await go_on(request)


def _has_key(request: Request, keys: tuple[str, ...]) -> bool:
    """As a bearer token (OpenAI) or in x-api-key (Anthropic); compared in constant time."""
    given = request.headers.get("x-api-key", "")
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given = token
    good = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
    return any(good)
