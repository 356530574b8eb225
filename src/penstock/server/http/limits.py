"""Who may ask, and how much: API keys, and limits on the size and duration of what a client sends."""

import asyncio
import sys
import time
from contextlib import nullcontext
from typing import Any, Final

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import BusyError
from penstock.server.http.connections import Connections
from penstock.server.http.errors import ApiError, api_error, respond
from penstock.server.http.keys import Key
from penstock.server.http.request_context import current_request
from penstock.server.http.strangers import refusal_of_stranger
from penstock.server.http.work import Workers
from penstock.server.page.page import ASSETS
from penstock.server.service import Service

PAGE: Final = "/dashboard/"  # what it asks for besides what clients do
# Paths, and beginnings of paths that end with a slash.
PUBLIC: Final = ("/health", "/v1/health", "/", ASSETS)  # no key needed; the page asks for it
WHILE_LOADING: Final = (
    *PUBLIC,
    PAGE,
    "/metrics",
    "/props",
    "/v1/models",
    "/v1/models/",
    "/api/version",
    "/api/tags",
    "/api/ps",
)
MAX_DIGITS: Final = 20  # of a number of bytes; Python reads no numbers of thousands of them
MAX_HEAD: Final = 64 << 10  # bytes of all headers and the path
HEADERS_TOO_LARGE: Final = 431
TOO_MANY: Final = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class AccessMiddleware:
    """Refuses requests from strangers' pages, without a key, with too large a head or body, or before the model is
    loaded.  A path may end with a slash: nobody is sent elsewhere for it."""

    def __init__(self, app: ASGIApp, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(ASSETS):
            scope["path"] = scope["path"].rstrip("/") or "/"
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        key = self.service.keys.find(_sent_key(Headers(scope=scope)))
        error = self._refusal(scope, key)
        # The page has what is being answered rendered meanwhile.
        limited = key if scope["method"] == "POST" and not scope["path"].startswith(PAGE) else None
        if error is None and limited is not None:
            error = limited.refusal()
        if error is not None:
            await respond(scope["path"], error)(scope, receive, send)
            return
        with nullcontext() if limited is None else limited.in_use():
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope, key: Key | None) -> ApiError | None:
        settings, path, headers = self.service.settings, scope["path"], Headers(scope=scope)
        if head_bytes(scope) > MAX_HEAD:
            text = f"the request's headers have more than the {MAX_HEAD:,} bytes that are allowed"
            return ApiError(HEADERS_TOO_LARGE, text, code="headers_too_large")
        if (stranger := refusal_of_stranger(scope, headers, settings)) is not None:
            return stranger
        if self.service.keys and not _among(path, PUBLIC) and key is None:
            return ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
        context = current_request()
        if context is not None:
            address = (scope.get("client") or ("",))[0]
            context.client, context.key = (address, None) if key is None else (f"key {key.name}", key)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > MAX_DIGITS or int(length) > self.service.max_body:
            text = f"the request has {length[:20]} bytes, {self.service.max_body:,} are allowed (--max-body)"
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


def _sent_key(headers: Headers) -> str:
    """What a client has: a bearer token (OpenAI), or what it says in x-api-key (Anthropic)."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else headers.get("x-api-key", "")


class BodyLimitMiddleware:
    """Counts and times a body while it is read: one sent in chunks does not say its length beforehand.

    A body of more than `most` bytes is answered with 413, one that is not there after `seconds` (0: any time will do)
    with 408, whatever the application makes of its sudden end; an answer that has begun is cut off instead.  A large
    one is read when there is memory for it.
    """

    def __init__(self, app: ASGIApp, most: int, seconds: float, work: Workers):
        self.app, self.most, self.seconds, self.work = app, most, seconds, work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length")
        chunked = "transfer-encoding" in Headers(scope=scope)
        nbytes = self.most if chunked else int(length or 0)
        try:
            async with self.work.room_for(nbytes) as room:
                context = current_request()
                if context is not None:
                    context.body_bytes, context.room = nbytes, room
                await self._serve(scope, receive, send)
        except BusyError as error:
            await respond(scope["path"], api_error(error))(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, begun = _Body(receive, self.most, self.seconds), False

        async def unless_refused(message: Message) -> None:
            nonlocal begun
            if body.refusal is None or begun:
                begun = True
                await send(message)

        try:
            await self.app(scope, body.next, unless_refused)
        except Exception:
            if body.refusal is None:
                raise
        if body.refusal is not None and not begun:
            await respond(scope["path"], body.refusal)(scope, receive, send)


class _Body:
    """What the client sends.  Once it is refused, the application sees a client that has disconnected."""

    def __init__(self, receive: Receive, most: int, seconds: float):
        self.receive, self.most, self.seconds = receive, most, seconds
        self.deadline = time.monotonic() + seconds
        self.read, self.whole = 0, False
        self.refusal: ApiError | None = None

    async def next(self) -> Message:
        if self.refusal is None:
            try:
                message = await self._before_deadline()
            except TimeoutError:
                text = f"the request's body was not there after {self.seconds:g} seconds"
                self.refusal = ApiError(408, text, code="request_timeout")
            else:
                self.read += len(message.get("body", b""))
                self.whole = self.whole or not message.get("more_body", False)
                if self.read <= self.most:
                    return message
                text = f"the request has more than the {self.most:,} bytes that are allowed"
                self.refusal = ApiError(413, text, code="request_too_large")
        return {"type": "http.disconnect"}

    async def _before_deadline(self) -> Message:
        if self.whole or not self.seconds:  # all that can come is that the client goes, whenever it likes
            return await self.receive()
        return await asyncio.wait_for(self.receive(), max(0.0, self.deadline - time.monotonic()))


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, with limits on connections and on a request's head.  uvicorn alone waits for ever for the
    end of a head, and calls one that is too long invalid.  The application's settings say how long to wait."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self.all_connections.add(self):
            transport.write(TOO_MANY)
            transport.close()
            return
        self._start_timer()

    @property
    def patience(self) -> float:
        """Seconds that a client may take to say what it wants; 0: any time."""
        found: float = self.config.app.state.service.settings.body_timeout  # type: ignore[union-attr]
        return found

    @property
    def all_connections(self) -> Connections:
        found: Connections = self.config.app.state.connections  # type: ignore[union-attr]
        return found

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        """No request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.all_connections.used(self)
        if self.conn.their_state is h11.IDLE:  # perhaps the next request of a connection that was kept
            self._start_timer()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()

    def on_response_complete(self) -> None:
        self.all_connections.used(self)
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:  # a part of the next head
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.all_connections.remove(self)
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) != HEADERS_TOO_LARGE:
            super().send_400_response(msg)
            return
        text = b"The request's headers are too long."
        headers = [
            ("content-type", "text/plain"),
            ("content-length", str(len(text))),
            ("connection", "close"),
        ]
        reason = b"Request Header Fields Too Large"
        events: list[Any] = [
            h11.Response(status_code=HEADERS_TOO_LARGE, headers=headers, reason=reason),
            h11.Data(data=text),
            h11.EndOfMessage(),
        ]
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

    def _start_timer(self) -> None:
        if self.patience and self._timer is None:
            self._timer = self.loop.call_later(self.patience, self.timeout_keep_alive_handler)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
