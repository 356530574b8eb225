"""A request's body is counted while it is read: one sent in chunks does not say its length beforehand."""

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.server.app import respond
from penstock.server.errors import ApiError


class BodyLimit:
    """Around an application.  A body of more than `most` bytes is answered with 413, whatever the application makes
    of its sudden end; an answer that has begun is cut off instead."""

    def __init__(self, app: ASGIApp, most: int):
        self.app, self.most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        read, too_large, begun = 0, False, False

        async def counted() -> Message:
            nonlocal read, too_large
            if too_large:
                return {"type": "http.disconnect"}
            message = await receive()
            read += len(message.get("body", b""))
            too_large = read > self.most
            return {"type": "http.disconnect"} if too_large else message

        async def unless_too_large(message: Message) -> None:
            nonlocal begun
            if not too_large or begun:
                begun = True
                await send(message)

        try:
            await self.app(scope, counted, unless_too_large)
        except Exception:
            if not too_large:
                raise
        if too_large and not begun:
            message = f"the request has more than the {self.most:,} bytes that are allowed"
            response = respond(Request(scope), ApiError(413, message, code="request_too_large"))
            await response(scope, receive, send)
