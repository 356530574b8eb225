"""Connections before there is a request: heads that are too long, or take too long to arrive."""

import asyncio
import sys
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

TOO_LONG: Final = 431


class Doorstep(H11Protocol):
    """uvicorn's way to speak HTTP.  It alone would wait for ever for the end of a head, and call one that is too long
    invalid.  The application's settings say how long to wait."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE:  # perhaps the next request of a connection that was kept
            self._wait_for_head()
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:  # a part of the next head
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) != TOO_LONG:
            super().send_400_response(msg)
            return
        text = b"The request's headers are too long."
        headers = [
            ("content-type", "text/plain"),
            ("content-length", str(len(text))),
            ("connection", "close"),
        ]
        events: list[Any] = [
            h11.Response(status_code=TOO_LONG, headers=headers, reason=b"Request Header Fields Too Large"),
            h11.Data(data=text),
            h11.EndOfMessage(),
        ]
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

    def _wait_for_head(self) -> None:
        patience = self.config.app.state.service.settings.body_timeout  # type: ignore[union-attr]
        if patience and self._timer is None:
            self._timer = self.loop.call_later(patience, self.timeout_keep_alive_handler)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
