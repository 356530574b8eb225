"""HEAD: what GET would answer, without the body."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Asks the application for GET and keeps what it says.  A stream that would go on is told that nobody listens."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self.app(scope, receive, send)
            return
        begun = asyncio.Event()

        async def head_only(message: Message) -> None:
            if message["type"] == "http.response.start" and not begun.is_set():
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                begun.set()

        async def gone() -> Message:
            await begun.wait()
            return {"type": "http.disconnect"}

        await self.app({**scope, "method": "GET"}, gone, head_only)
