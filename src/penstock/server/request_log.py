"""A line in the log for each request, and an id that its answer, its errors and all its lines have in common."""

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.errors import ApiError, respond
from penstock.server.exchange import Exchange, begin_exchange, current_exchange
from penstock.server.logs import fields
from penstock.server.openai_answer import timings
from penstock.server.service import Follower, Service, Usage

POLLED: Final = ("/health", "/v1/health", "/metrics")  # by machines, every few seconds
LONGEST: Final = 80  # characters of what a client sends

log = logging.getLogger(__name__)


def attach(app: FastAPI, service: Service) -> None:
    """Writes down what comes to the application from now on."""
    app.add_middleware(RequestLog)
    service.observers.append(_note_usage)


class RequestLog:
    """Around everything else: also what fails for a reason that nobody thought of is answered and written down."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, begun = Headers(scope=scope), False
        exchange = begin_exchange(headers.get("x-request-id", ""))

        async def with_id(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun, exchange.status = True, message["status"]
                added = MutableHeaders(scope=message)
                added["x-request-id"] = exchange.id
                if scope["path"].startswith("/v1/messages"):
                    added["request-id"] = exchange.id  # where Anthropic's clients look for it
            await send(message)

        try:
            await self.app(scope, receive, with_id)
        except Exception:
            log.exception("a request failed")
            exchange.status, exchange.error = 500, "internal_error"
            if begun:
                raise  # the connection has to be closed: a client must not take this for the end
            text = f"the server failed; its log says why, for request {exchange.id}"
            await respond(scope["path"], ApiError(500, text, code="internal_error"))(scope, receive, with_id)
        finally:
            level = logging.DEBUG if scope["path"] in POLLED and not exchange.error else logging.INFO
            if log.isEnabledFor(level):
                log.log(level, "request", extra=fields(**_line(scope, headers, exchange)))


def _note_usage(_: Sequence[int], usage: Usage) -> Follower:
    exchange = current_exchange()
    if exchange is not None:
        exchange.usages.append(usage)
    return lambda _: None


def _line(scope: Scope, headers: Headers, exchange: Exchange) -> dict[str, Any]:
    """Nothing that was said, and no query, where keys might be."""
    line = {
        "id": exchange.id,
        "method": scope["method"],
        "path": scope["path"][:LONGEST],
        "status": exchange.status,
        "error": exchange.error or None,
        "seconds": round(time.monotonic() - exchange.begun, 3),
        "client": (scope.get("client") or ("",))[0] or None,
        "agent": headers.get("user-agent", "")[:LONGEST] or None,
    }
    usages = exchange.usages
    if usages:
        line |= {
            "prompt": sum(usage.prompt for usage in usages),
            "cached": sum(usage.cached for usage in usages),
            "generated": sum(usage.completion for usage in usages),
            "per_second": round(sum(timings(usage)["predicted_per_second"] for usage in usages), 1),
        }
    return line
