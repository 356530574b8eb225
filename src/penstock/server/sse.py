"""Server-sent events: a response that tells what happens as it happens, and shows that it is alive meanwhile."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final, Self

import anyio
import anyio.lowlevel
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.server.errors import ApiError, api_error

KEEP_ALIVE: Final = ": prefill\n\n"  # a comment: clients skip it, proxies see traffic
DONE: Final = "data: [DONE]\n\n"
ACCEPTANCE: Final = 0.25  # seconds; what is wrong with a request shows at once, its turn may come much later
MOST_WAITING: Final = 64  # events that a client who reads slowly is behind, before those who make them wait

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def data(payload: Any, event: str | None = None) -> str:
    """One event.

    >>> data({"text": "hi"})
    'data: {"text":"hi"}\\n\\n'
    """
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {_encode(payload)}\n\n"


class EventStream(StreamingResponse):
    """Sends what `lines` yields.  Made by `open`.

    ping     seconds after which, if nothing else was sent, `keep_alive` is
    failure  what is sent when `lines` fails after the headers have gone
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        lines: AsyncGenerator[str, None],
        ping: float,
        failure: Callable[[ApiError], str],
        keep_alive: str = KEEP_ALIVE,
    ):
        # X-Accel-Buffering: nginx would otherwise collect events before it passes them on.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._events(), headers=headers)
        self._lines, self._ping, self._failure, self._keep_alive = lines, ping, failure, keep_alive
        self._waiting: deque[str] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._listening = asyncio.ensure_future(self._listen())

    @classmethod
    async def open(
        cls,
        lines: AsyncGenerator[str, None],
        ping: float,
        failure: Callable[[ApiError], str],
        keep_alive: str = KEEP_ALIVE,
    ) -> Self:
        """The response, once the request is accepted: what is wrong with it is raised here, while the status can
        still tell of it."""
        stream = cls(lines, ping, failure, keep_alive)
        try:
            await stream._wait(ACCEPTANCE)
            if stream._error is not None and not stream._waiting:
                raise stream._error
        except BaseException:
            await stream._close()
            raise
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with anyio.CancelScope(shield=True):  # also if the client has gone, which cancels us
                await self._close()

    async def _listen(self) -> None:
        """One task for the whole stream: one for every event would cost more than all the rest."""
        try:
            async for line in self._lines:
                self._waiting.append(line)
                self._news.set()
                if len(self._waiting) >= MOST_WAITING:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._news.set()

    async def _wait(self, seconds: float) -> None:
        """Until there is something to send or the end, or for so many seconds; 0: as long as it takes."""
        if self._waiting or self._ended:
            return
        self._news.clear()
        timer = asyncio.get_running_loop().call_later(seconds, self._news.set) if seconds else None
        try:
            await self._news.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _events(self) -> AsyncIterator[str]:
        while True:
            await anyio.lowlevel.checkpoint_if_cancelled()  # there may always be something ready to send
            await self._wait(self._ping)
            if self._waiting:
                lines = "".join(self._waiting)  # several, if sending is slower than the model
                self._waiting.clear()
                self._room.set()
                yield lines
            elif not self._ended:
                yield self._keep_alive
            else:
                break
        if self._error is not None:
            yield self._failure(_told(self._error))

    async def _close(self) -> None:
        self._listening.cancel()
        with suppress(asyncio.CancelledError):
            await self._listening
        await self._lines.aclose()


def _told(error: Exception) -> ApiError:
    """What a client hears of a failure in the middle of a stream."""
    match error:
        case ApiError():
            return error
        case PenstockError():
            return api_error(error)
        case _:
            logging.getLogger(__name__).error("a stream failed", exc_info=error)
            return ApiError(500, "the server failed; its log says why", code="internal_error")
