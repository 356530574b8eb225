"""The application on a socket: uvicorn, from the first connection to an orderly end."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable
from typing import Final

import uvicorn

from penstock.engine.runner import Loading
from penstock.errors import OptionError
from penstock.server.http.app import create_app
from penstock.server.http.connections import ACCEPTED
from penstock.server.http.limits import MAX_HEAD, LimitedProtocol
from penstock.server.http.tls import Certificate, tls_protocol
from penstock.server.observe.logs import fields
from penstock.server.service import Service

BACKLOG: Final = 1024  # connections that the system keeps until they are accepted
TURN: Final = 0.001  # seconds after which a busy thread lets the event loop run; Python's own five add up
KEEP_ALIVE: Final = 65  # seconds between two requests of a connection: more than proxies leave


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise OptionError(f"cannot listen on {host} port {port}: {error}") from None


def address(listener: socket.socket, scheme: str = "http") -> str:
    """Where a client finds the server.

    >>> address(listen("127.0.0.1", 8080))  # doctest: +SKIP
    'http://127.0.0.1:8080'
    """
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Server(uvicorn.Server):
    """Ends when it is told to, or if the model cannot be loaded.  Answers may go on for `farewell` seconds then;
    those that are left end as any failed answer does.  `show_loading` is called with the engine's progress.  With a
    certificate, it speaks HTTPS."""

    def __init__(
        self,
        service: Service,
        farewell: float,
        show_loading: Callable[[Loading | None], None] = lambda _: None,
        certificate: Certificate | None = None,
    ):
        self.service, self.farewell, self.certificate = service, farewell, certificate
        self._show_loading, self._state = show_loading, ""
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=LimitedProtocol if certificate is None else tls_protocol(certificate),
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEAD,
                timeout_keep_alive=KEEP_ALIVE,
                backlog=ACCEPTED,  # also how many asyncio accepts before it looks at anything else
                timeout_graceful_shutdown=int(farewell) + 5,  # for clients that do not listen
            )
        )

    async def on_tick(self, counter: int) -> bool:
        self._show_loading(self.service.engine.loading)
        if self.service.state != self._state:
            self._state = self.service.state
            logging.getLogger(__name__).info("model", extra=fields(state=self._state))
        return await super().on_tick(counter) or self._state == "failed"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        sys.setswitchinterval(TURN)
        gc.collect()
        gc.freeze()  # what is here already stays, and need not be looked through again and again
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.ensure_future(asyncio.to_thread(self.service.scheduler.stop, self.farewell))
        await super().shutdown(sockets)
        await ending

    def _reload(self, *_: object) -> None:
        """Keys and certificate as their files have them now.  What cannot be read stays as it was."""
        for each in (self.service.keys, self.certificate):
            if each is not None:
                try:
                    each.reload()
                except OptionError as error:
                    logging.getLogger(__name__).error("%s", error)

    def run_until_signal(self, listener: socket.socket) -> None:
        """Until SIGTERM or SIGINT.  Raises why there is no model, if that is the end."""

        def end(*_: object) -> None:
            self.should_exit = True

        # uvicorn raises the signal again once it is done; with this that is the orderly end that was asked for.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        signal.signal(signal.SIGHUP, self._reload)
        self.run(sockets=[listener])
        if self.service.scheduler.failure is not None:
            raise self.service.scheduler.failure
