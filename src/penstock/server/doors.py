"""Who comes in: those with a key, with a head and a body of a decent size, once there is a model to answer them."""

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.server import dashboard
from penstock.server.errors import ApiError, respond
from penstock.server.service import Service

# Paths, and beginnings of paths that end with a slash.
OPEN: Final = (
    "/health",
    "/v1/health",
    "/",
    dashboard.ASSETS,
)  # whoever watches needs no key; a page asks for it
WHILE_LOADING: Final = (
    *OPEN,
    "/dashboard/",
    "/metrics",
    "/props",
    "/v1/models",
    "/v1/models/",
)  # without weights
DIGITS: Final = 20  # of a number of bytes; Python reads no numbers of thousands of them
MOST_HEAD: Final = 64 << 10  # bytes of all headers and the path


class Doors:
    """Around an application."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self.app(scope, receive, send)
        else:
            await respond(scope["path"], error)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        settings, path, headers = self.service.settings, scope["path"], Headers(scope=scope)
        if head_bytes(scope) > MOST_HEAD:
            text = f"the request's headers have more than the {MOST_HEAD:,} bytes that are allowed"
            return ApiError(431, text, code="headers_too_large")
        if settings.api_keys and not _among(path, OPEN) and not _has_key(headers, settings.api_keys):
            return ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > DIGITS or int(length) > settings.max_body:
            text = f"the request has {length[:20]} bytes, {settings.max_body:,} are allowed"
            return ApiError(413, text, code="request_too_large")
        if self.service.state in ("loading", "failed") and not _among(path, WHILE_LOADING):
            return ApiError(503, "Loading model", code="loading")
        return None


def _among(path: str, places: tuple[str, ...]) -> bool:
    return path in places or any(
        len(place) > 1 and place[-1] == "/" and path.startswith(place) for place in places
    )


def head_bytes(scope: Scope) -> int:
    """As they were sent, but for what surrounds names and values."""
    target = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    return target + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _has_key(headers: Headers, keys: tuple[str, ...]) -> bool:
    """As a bearer token (OpenAI) or in x-api-key (Anthropic); compared in constant time."""
    given = headers.get("x-api-key", "")
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        given = token
    good = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]
    return any(good)
