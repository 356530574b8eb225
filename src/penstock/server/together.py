"""Several streams that run at the same time, and answers that somebody still waits for."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import Request

from penstock.server.errors import ApiError

T = TypeVar("T")


async def together(
    streams: Sequence[AsyncGenerator[T, None]], most: int
) -> AsyncGenerator[tuple[int, T], None]:
    """(index of the stream, what it yields) in the order in which it happens; at most `most` run at a time.  The
    first failure ends them all, and so does closing."""
    if len(streams) == 1:  # nearly always: no need for tasks and a queue
        async with aclosing(streams[0]) as only:
            async for update in only:
                yield 0, update
        return
    found: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()
    gate = asyncio.Semaphore(most)

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


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is given up when the client goes away.  The request's body must have been read."""
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
