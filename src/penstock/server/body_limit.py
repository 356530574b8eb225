"""A request's body is counted and timed while it is read: one sent in chunks does not say its length beforehand."""

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.errors import ApiError, respond


class BodyLimit:
    """Around an application.  A body of more than `most` bytes is answered with 413, one that is not there after
    `seconds` (0: any time will do) with 408, whatever the application makes of its sudden end; an answer that has
    begun is cut off instead."""

    def __init__(self, app: ASGIApp, most: int, seconds: float):
        self.app, self.most, self.seconds = app, most, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
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
    """What the client sends.  Once it is refused, the client seems to have gone."""

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
