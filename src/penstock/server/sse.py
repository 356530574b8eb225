"""Server-sent events: a response that tells what happens as it happens, and shows that it is alive meanwhile."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Final, Self

import anyio
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.server.errors import ApiError, api_error

KEEP_ALIVE: Final = ": prefill\n\n"  # a comment: clients skip it, proxies see traffic
DONE: Final = "data: [DONE]\n\n"
ACCEPTANCE: Final = 0.25  # seconds; what is wrong with a request shows at once, its turn may come much later


def data(payload: Any, event: str | None = None) -> str:
    """One event.

    >>> data({"text": "hi"})
    'data: {"text":"hi"}\\n\\n'
    """
    name = f"event: {event}\n" if event else ""
    return f"{name}data: {json.dumps(payload, ensure_ascii=False, separators=(',', ':'))}\n\n"


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
        self._next: asyncio.Future[str] = asyncio.ensure_future(anext(lines))

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
            await asyncio.wait({stream._next}, timeout=ACCEPTANCE)
            if stream._next.done() and not isinstance(stream._next.exception(), StopAsyncIteration):
                stream._next.result()
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

    async def _events(self) -> AsyncIterator[str]:
        while True:
            if not (await asyncio.wait({self._next}, timeout=self._ping or None))[0]:
                yield self._keep_alive
                continue
            try:
                line = self._next.result()
            except StopAsyncIteration:
                return
            except ApiError as error:
                yield self._failure(error)
                return
            except PenstockError as error:
                yield self._failure(api_error(error))
                return
            except Exception:
                logging.getLogger(__name__).exception("a stream failed")
                yield self._failure(
                    ApiError(500, "the server failed; its log says why", code="internal_error")
                )
                return
            yield line
            self._next = asyncio.ensure_future(anext(self._lines))

    async def _close(self) -> None:
        self._next.cancel()
        with suppress(asyncio.CancelledError, StopAsyncIteration, Exception):
            await self._next
        await self._lines.aclose()
