"""`penstock serve`: the model for everybody who speaks OpenAI's, Anthropic's or llama.cpp's API."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
import uvicorn

from penstock.cli import options
from penstock.cli.opening import LoadingBar, open_engine
from penstock.engine.options import EngineOptions
from penstock.environment import API_KEY
from penstock.errors import OptionError
from penstock.server.app import create_app
from penstock.server.doors import MOST_HEAD
from penstock.server.doorstep import Doorstep
from penstock.server.logs import LEVELS, fields, start_logging
from penstock.server.service import Service
from penstock.server.settings import LOOPBACK, Settings

KEEP_ALIVE: Final = 65  # seconds between two requests of a connection: more than proxies leave


@options.with_flags
def serve_command(
    given: partial[Settings],
    engine_given: partial[EngineOptions],
    model: options.Model = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file with a key in each line.")] = None,
    log_level: Annotated[str, typer.Option(help=f"What is worth a line: {', '.join(LEVELS)}.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines are JSON.")] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="Log to this file, which may be moved away at any time.")
    ] = None,
) -> None:
    """Answer requests over HTTP.

    Example: penstock serve -m model.gguf --port 8080
    """
    settings = given(api_keys=read_keys(given.keywords["api_keys"], api_key_file))
    chosen = engine_given(sessions=settings.parallel)
    if settings.park_after and chosen.trace is not None:
        raise OptionError("--park-after and --trace: an engine that records a trace cannot be parked")
    start_logging(log_level, log_json, log_file)
    if settings.host not in LOOPBACK:
        print(
            f"penstock: --host {settings.host}: others than this machine can connect, and what they send and hear is"
            " not encrypted",
            file=sys.stderr,
        )
    with listen(settings.host, settings.port) as door:  # before loading, which may take minutes for nothing
        # The scheduler loads, while the server tells how far it is.
        engine = open_engine(model, chosen, load=False)
        server = Server(Service(engine, settings), settings.farewell)
        print(f"penstock: listening on {address(door)}", flush=True)
        run(server, door)


def read_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """All keys: those that were given, those in the file, and the one in the environment."""
    keys = list(given)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"--api-key-file {file}: {error}") from None
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise OptionError(f"--api-key-file {file}: there is no key in it")
        keys += found
    key = API_KEY.read()
    return tuple(keys if key is None else [*keys, key])


def listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise OptionError(f"cannot listen on {host} port {port}: {error}") from None


def address(door: socket.socket) -> str:
    """Where a client finds the server.

    >>> address(listen("127.0.0.1", 8080))  # doctest: +SKIP
    'http://127.0.0.1:8080'
    """
    host, port = door.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A service on the web.  It ends when it is told to, or if there turns out to be no model.  Answers may go on for
    `farewell` seconds then; what is left is told so, and ends as any failed answer does."""

    def __init__(self, service: Service, farewell: float):
        self.service, self.farewell = service, farewell
        self._bar, self._state = LoadingBar(), ""
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=Doorstep,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=MOST_HEAD,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=int(farewell) + 5,  # for clients that do not listen
            )
        )

    async def on_tick(self, counter: int) -> bool:
        self._bar.show(self.service.engine.loading)
        if self.service.state != self._state:
            self._state = self.service.state
            logging.getLogger(__name__).info("model", extra=fields(state=self._state))
        return await super().on_tick(counter) or self._state == "failed"

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.ensure_future(asyncio.to_thread(self.service.scheduler.stop, self.farewell))
        await super().shutdown(sockets)
        await ending


def run(server: Server, door: socket.socket) -> None:
    """Until SIGTERM or SIGINT.  Raises why there is no model, if that is the end."""

    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn raises the signal again once it is done; with this that is the orderly end that was asked for.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run(sockets=[door])
    failure = server.service.scheduler.failure
    if failure is not None:
        raise failure
