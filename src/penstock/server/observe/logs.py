"""What the server writes down: a line for each event, for people or as JSON, on standard error or in a file; and a
line for each request, with an id that its answer, its errors and all its lines have in common.

A file that was moved away is made anew for the next line, so that logs can be rotated at any time; SIGHUP, with which
that is usually announced, harms nobody.
"""

import json
import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.errors import OptionError
from penstock.server.http.errors import ApiError, respond
from penstock.server.http.request_context import RequestContext, begin_request, current_request
from penstock.server.http.settings import LOG_LEVELS
from penstock.server.service import Follower, Service
from penstock.server.usage import Usage, timings

POLLED: Final = ("/health", "/v1/health", "/metrics", "/dashboard/markdown")  # by programs, again and again
KINDS: Final = 1000  # of lines that are told apart
LONGEST: Final = 80  # characters of what a client sends
CHATTY: Final = ("uvicorn", "asyncio")  # they tell what we tell ourselves


log = logging.getLogger(__name__)


def start_logging(level: str = "info", as_json: bool = False, file: Path | None = None) -> None:
    """For the whole process: also for what libraries log, and for warnings."""
    if level not in LOG_LEVELS:
        raise OptionError(f"--log-level is {level!r}, expected one of {', '.join(LOG_LEVELS)}")
    try:
        handler = (
            logging.StreamHandler(sys.stderr) if file is None else WatchedFileHandler(file, encoding="utf-8")
        )
    except OSError as error:
        raise OptionError(f"--log-file {file}: {error.strerror}") from None
    handler.addFilter(Repeats())
    handler.setFormatter(JsonLines() if as_json else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel("INFO" if level == "debug" else max(root.level, logging.WARNING))
    warnings.showwarning = _warned  # type: ignore[assignment]
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, lambda *_: None)


def fields(**found: Any) -> dict[str, Any]:
    """What a line says besides its message: `log.info("request", extra=fields(status=200))`"""
    return {"fields": {name: value for name, value in found.items() if value is not None}}


class Repeats(logging.Filter):
    """Lets through so many lines of one kind in a second; the next one after that says how many were left out.
    Otherwise whoever can cause a line can fill the disk."""

    def __init__(self, most: int = 50, now: Callable[[], float] = time.monotonic):
        super().__init__()
        self.most, self._now = most, now
        self._kinds: dict[tuple[str, str, object], tuple[int, int]] = {}  # (second, lines in it)

    def filter(self, record: logging.LogRecord) -> bool:
        found: dict[str, Any] = getattr(record, "fields", {})
        kind = (record.name, str(record.msg)[:LONGEST], found.get("status"))
        second = int(self._now())
        last, count = self._kinds.pop(kind, (second, 0))
        if len(self._kinds) >= KINDS:
            self._kinds.clear()
        left_out = count - self.most
        if last != second:
            count = 0
            if left_out > 0:
                record.fields = {**found, "left_out": left_out}
        self._kinds[kind] = (second, count + 1)
        return count < self.most


class TextLines(logging.Formatter):
    """2026-11-15 09:30:00.123 INFO  request status=200 agent="curl/8.5.0 (linux)"

    What comes from a client is quoted, so that it can neither end a line nor look like another field.
    """

    def format(self, record: logging.LogRecord) -> str:
        found = _fields(record)
        text = "".join(f" {name}={_plain(value)}" for name, value in found.items())
        when = datetime.fromtimestamp(record.created).isoformat(" ", "milliseconds")
        line = f"{when} {record.levelname:<7} {record.getMessage()}{text}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonLines(logging.Formatter):
    """One JSON object for each event."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """With the request that the line belongs to."""
    found: dict[str, Any] = getattr(record, "fields", {})
    context = current_request()
    return found if context is None or "id" in found else {"id": context.id, **found}


def _plain(value: object) -> str:
    text = str(value)
    simple = text.isascii() and text.isprintable() and not set(text) & set(" \"'=\\")
    return text if simple and text else json.dumps(text)


def _warned(message: Warning | str, *_: object) -> None:
    logging.getLogger("penstock").warning(str(message))


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
        context = begin_request(headers.get("x-request-id", ""))

        async def with_id(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun, context.status = True, message["status"]
                added = MutableHeaders(scope=message)
                added["x-request-id"] = context.id
                if scope["path"].startswith("/v1/messages"):
                    added["request-id"] = context.id  # where Anthropic's clients look for it
            await send(message)

        try:
            await self.app(scope, receive, with_id)
        except Exception:
            log.exception("a request failed")
            context.status, context.error = 500, "internal_error"
            if begun:
                raise  # the connection has to be closed: a client must not take this for the end
            text = f"the server failed; its log says why, for request {context.id}"
            await respond(scope["path"], ApiError(500, text, code="internal_error"))(scope, receive, with_id)
        finally:
            level = logging.DEBUG if scope["path"] in POLLED and not context.error else logging.INFO
            if log.isEnabledFor(level):
                log.log(level, "request", extra=fields(**_line(scope, headers, context)))


def _note_usage(_: Sequence[int], usage: Usage) -> Follower:
    context = current_request()
    if context is not None:
        context.usages.append(usage)
    return lambda _: None


def _line(scope: Scope, headers: Headers, context: RequestContext) -> dict[str, Any]:
    """Nothing that was said, and no query, where keys might be."""
    line = {
        "id": context.id,
        "method": scope["method"],
        "path": scope["path"][:LONGEST],
        "status": context.status,
        "error": context.error or None,
        "seconds": round(time.monotonic() - context.begun, 3),
        "client": (scope.get("client") or ("",))[0] or None,
        "agent": headers.get("user-agent", "")[:LONGEST] or None,
    }
    usages = context.usages
    if usages:
        line |= {
            "prompt": sum(usage.prompt for usage in usages),
            "cached": sum(usage.cached for usage in usages),
            "generated": sum(usage.completion for usage in usages),
            "per_second": round(sum(timings(usage)["predicted_per_second"] for usage in usages), 1),
        }
    return line
