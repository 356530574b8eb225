"""`--trace-requests FILE`: whole exchanges as lines of JSON, for whoever wonders what went wrong in a conversation.

A line is written when an answer ends.  Until then what was said is in a nameless file beside it, so that long answers
take no memory.  Nobody but the owner may read the file: everything that is said is in it.  Keys are not.
"""

import codecs
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.engine.progress import PrefillProgress
from penstock.engine.requests import Failed, Update
from penstock.engine.steps import Step
from penstock.errors import OptionError
from penstock.server.http.keys import Keys
from penstock.server.http.request_context import current_request
from penstock.server.service import Follower, Service
from penstock.server.usage import Usage, timings

IN_MEMORY: Final = 256 << 10  # bytes of a text before it goes to the disk
PIECE: Final = 1 << 16
SECRET: Final = ("auth", "key", "token", "cookie", "secret")  # headers with such a word are for no other eyes

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Generation:
    """One prompt's way through the model."""

    prompt: list[int]
    usage: Usage
    tokens: list[int] = field(default_factory=list)
    source: str = ""
    reason: str = ""
    finish_reason: str | None = None
    error: str = ""

    def add(self, update: Update) -> None:
        match update:
            case PrefillProgress():
                self.source, self.reason = update.source, update.reason
            case Step():
                self.tokens.append(update.token)
                self.finish_reason = update.finish_reason
            case Failed(error):
                self.error = f"{type(error).__name__}: {error}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "tokens": self.tokens,
            "cached_from": self.source,
            "not_cached_because": self.reason,
            "finish_reason": self.finish_reason,
            "error": self.error,
            "timings": timings(self.usage),
        }


_generations: ContextVar[list[Generation] | None] = ContextVar("generations", default=None)


def _follow(prompt: Sequence[int], usage: Usage) -> Follower:
    generation, found = Generation(list(prompt), usage), _generations.get()
    if found is not None:
        found.append(generation)
    return generation.add


def attach(app: FastAPI, service: Service) -> None:
    """Writes down what comes to the application from now on, if the settings say where."""
    path = service.settings.trace_requests
    if path is not None:
        app.add_middleware(RequestTrace, file=TraceFile(path), keys=service.keys)
        service.observers.append(_follow)


class TraceFile:
    """Lines of a file that its owner alone can read.  It may be moved away at any time."""

    def __init__(self, path: Path):
        self.path = path
        try:
            os.close(self._open())
        except OSError as error:
            raise OptionError(f"--trace-requests {path}: {error.strerror}") from None

    def append(self, parts: Iterable[bytes]) -> None:
        """All of a line or none of it.  If that fails, the log says so: nobody's answer depends on it."""
        try:
            descriptor = self._open()
        except OSError as error:
            log.warning("--trace-requests: a request could not be written down: %s", error.strerror)
            return
        begin = os.fstat(descriptor).st_size
        try:
            for part in parts:
                while part:
                    part = part[os.write(descriptor, part) :]
        except OSError as error:
            os.ftruncate(descriptor, begin)
            log.warning("--trace-requests: a request could not be written down: %s", error.strerror)
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)  # it may have been there before
        return descriptor


class RequestTrace:
    """Around an application: what clients send to it by POST, and what they are answered."""

    def __init__(self, app: ASGIApp, file: TraceFile, keys: Keys):
        self.app, self.file, self.keys = app, file, keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        generations: list[Generation] = []
        _generations.set(generations)
        begun, status = time.monotonic(), 0
        head, folder = self._head(scope), self.file.path.parent
        with SpooledText(folder) as request, SpooledText(folder) as response:

            async def heard() -> Message:
                message = await receive()
                request.write(message.get("body", b""))
                return message

            async def answered(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                response.write(message.get("body", b""))
                await send(message)

            try:
                await self.app(scope, heard, answered)
            finally:
                tail = {
                    "status": status,
                    "seconds": round(time.monotonic() - begun, 6),
                    "generations": [generation.as_dict() for generation in generations],
                }
                self.file.append(_line(head, request, response, tail))

    def _head(self, scope: Scope) -> dict[str, Any]:
        context = current_request()
        query = scope["query_string"].decode("latin-1")
        for key in self.keys.all:
            query = query.replace(key.secret, "…")
        headers = {
            name: "…" if any(word in name for word in SECRET) else value
            for name, value in Headers(scope=scope).items()
        }
        return {
            "id": context.id if context else None,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": (scope.get("client") or (None,))[0],
            "path": scope["path"] + ("?" + query if query else ""),
            "headers": headers,
        }


def _line(
    head: dict[str, Any], request: "SpooledText", response: "SpooledText", tail: dict[str, Any]
) -> Iterator[bytes]:
    """One JSON object, with both texts between head and tail."""
    yield json.dumps(head).encode()[:-1] + b', "request": "'
    yield from request.escaped()
    yield b'", "response": "'
    yield from response.escaped()
    yield b'", ' + json.dumps(tail).encode()[1:] + b"\n"


class SpooledText:
    """A text on its way into a line: as it comes, between the quotes of a JSON string."""

    def __init__(self, folder: Path):
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(folder))  # noqa: SIM115
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lost = False

    def write(self, data: bytes, last: bool = False) -> None:
        text = self._decoder.decode(data, last)
        if text and not self._lost:
            try:
                self._file.write(json.dumps(text)[1:-1].encode())
            except OSError as error:
                self._lost = True
                log.warning("--trace-requests: a request is written down in part: %s", error.strerror)

    def escaped(self) -> Iterator[bytes]:
        self.write(b"", last=True)
        self._file.seek(0)
        while piece := self._file.read(PIECE):
            yield piece

    def __enter__(self) -> "SpooledText":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
