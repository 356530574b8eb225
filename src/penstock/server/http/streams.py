"""Answers on their way out: server-sent events, JSON whose events carry names, several streams as one."""

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, Self, TypeVar

import anyio
import anyio.lowlevel
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.errors import PenstockError
from penstock.server.http.errors import ApiError, api_error
from penstock.server.http.request_context import current_request

KEEP_ALIVE: Final = ":\n\n"  # a comment: clients skip it, proxies see traffic
DONE: Final = "data: [DONE]\n\n"
ACCEPTANCE: Final = 0.25  # seconds; what is wrong with a request shows at once, its turn may come much later
MAX_BUFFERED: Final = 64  # events that a slow client may be behind before generation waits for it

_encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

T = TypeVar("T")


def data(payload: Any) -> str:
    """One event.

    >>> data({"text": "hi"})
    'data: {"text":"hi"}\\n\\n'
    """
    return f"data: {_encode(payload)}\n\n"


def named_event(event: dict[str, Any]) -> str:
    """A server-sent event that is called by the `type` of what it carries."""
    return f"event: {event['type']}\ndata: {_ascii(event)}\n\n"


def json_reply(body: dict[str, Any] | list[dict[str, Any]]) -> Response:
    return Response(_ascii(body), media_type="application/json")


def _ascii(value: dict[str, Any] | list[dict[str, Any]]) -> str:
    """Everything else is escaped: half of a surrogate pair, which JSON can name, has no UTF-8."""
    return json.dumps(value, separators=(",", ":"))


def json_line(payload: dict[str, Any]) -> str:
    return _ascii(payload) + "\n"


class EventStream(StreamingResponse):
    """Sends what `lines` yields.  Made by `open`.

    ping        seconds after which, if nothing else was sent, `keep_alive` is
    failure     what is sent when `lines` fails after the headers have gone
    keep_alive  says what is sent then: a comment, which clients skip
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        lines: AsyncGenerator[str, None],
        ping: float,
        failure: Callable[[ApiError], str],
        keep_alive: Callable[[], str] = lambda: KEEP_ALIVE,
    ):
        # X-Accel-Buffering: nginx would otherwise collect events before it passes them on.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(self._events(), headers=headers)
        self._lines, self._ping, self._failure, self._keep_alive = lines, ping, failure, keep_alive
        self._buffer: deque[str] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._reader = asyncio.ensure_future(self._read())

    @classmethod
    async def open(
        cls,
        lines: AsyncGenerator[str, None],
        ping: float,
        failure: Callable[[ApiError], str],
        keep_alive: Callable[[], str] = lambda: KEEP_ALIVE,
    ) -> Self:
        """The response, once the request is accepted: what is wrong with it is raised here, while the status can
        still tell of it."""
        stream = cls(lines, ping, failure, keep_alive)
        try:
            await stream._wait(ACCEPTANCE)
            if stream._error is not None and not stream._buffer:
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

    async def _read(self) -> None:
        """One task for the whole stream: one for every event would cost more than all the rest."""
        try:
            async for line in self._lines:
                self._buffer.append(line)
                self._news.set()
                if len(self._buffer) >= MAX_BUFFERED:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._error = error
        finally:
            self._ended = True
            self._news.set()

    async def _wait(self, seconds: float) -> None:
        """Until there is something to send or the end, or for so many seconds; 0: as long as it takes."""
        if self._buffer or self._ended:
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
            if self._buffer:
                lines = "".join(self._buffer)  # several, if sending is slower than the model
                self._buffer.clear()
                self._room.set()
                yield lines
            elif not self._ended:
                yield self._keep_alive()
            else:
                break
        if self._error is not None:
            error, context = _for_client(self._error), current_request()
            if context is not None:
                context.error = error.kind  # for the log: the status has gone out long ago
            yield self._failure(error)

    async def _close(self) -> None:
        self._reader.cancel()
        with suppress(asyncio.CancelledError):
            await self._reader
        await self._lines.aclose()


class LineStream(EventStream):
    """The same, as lines of JSON."""

    media_type = "application/x-ndjson"


def _for_client(error: Exception) -> ApiError:
    """What a client is told of a failure in the middle of a stream."""
    match error:
        case ApiError():
            return error
        case PenstockError():
            return api_error(error)
        case _:
            logging.getLogger(__name__).error("a stream failed", exc_info=error)
            return ApiError(500, "the server failed; its log says why", code="internal_error")


async def merged(
    streams: Sequence[AsyncGenerator[T, None]], parallel: int
) -> AsyncGenerator[tuple[int, T], None]:
    """(index of the stream, what it yields) in the order in which it happens; at most `parallel` run at a time.  The
    first failure ends them all, and so does closing."""
    if len(streams) == 1:  # nearly always: no need for tasks and a queue
        async with aclosing(streams[0]) as only:
            async for update in only:
                yield 0, update
        return
    found: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()
    gate = asyncio.Semaphore(parallel)

    async def pump(index: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with gate, aclosing(stream):
                async for update in stream:
                    found.put_nowait((index, update))
        except Exception as error:
            found.put_nowait(error)
        else:
            found.put_nowait(None)

    tasks = [asyncio.ensure_future(pump(index, stream)) for index, stream in enumerate(streams)]
    running = len(tasks)
    try:
        while running:
            item = await found.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects.  The request's body must have been
    read."""
    answer = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ApiError(499, "the client has gone")
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
