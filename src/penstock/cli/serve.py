"""`penstock serve`: the model for everybody who speaks OpenAI's, Anthropic's or llama.cpp's API."""

import asyncio
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
import uvicorn

from penstock.cli import options
from penstock.cli.opening import LoadingBar, open_engine
from penstock.errors import OptionError
from penstock.server.app import create_app
from penstock.server.doors import MOST_HEAD
from penstock.server.doorstep import Doorstep
from penstock.server.logs import LEVELS, fields, start_logging
from penstock.server.service import Service
from penstock.server.settings import LOOPBACK, Settings
from penstock.sizes import parse_size

KEY_VARIABLE: Final = "PENSTOCK_API_KEY"
FAREWELL: Final = 10.0  # seconds that answers may go on after the server was told to end
KEEP_ALIVE: Final = 65  # seconds between two requests of a connection: more than proxies leave


def serve_command(
    model: options.Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8080,
    name: Annotated[str, typer.Option(help="What the model is called.")] = "deepseek-v4",
    api_key: Annotated[
        list[str] | None,
        typer.Option(help=f"A key that opens the server; may be repeated. Also from {KEY_VARIABLE}."),
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file with a key in each line.")] = None,
    parallel: Annotated[int, typer.Option(help="Requests answered at a time.")] = 8,
    queue: Annotated[int, typer.Option(help="Requests that may wait.")] = 64,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 1 << 20,
    max_body: Annotated[str, typer.Option(help="Largest request.")] = "64MiB",
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take; 0: any time.")] = 0.0,
    body_timeout: Annotated[float, typer.Option(help="Seconds that a request may take to arrive.")] = 30.0,
    kv_dir: Annotated[
        Path | None,
        typer.Option(help="Folder to save conversations in, so that they need not be read again."),
    ] = None,
    kv_space: Annotated[str, typer.Option(help="Disk space for them.")] = "16GiB",
    park_after: Annotated[
        float, typer.Option(help="Seconds without requests after which the weights leave memory; 0: never.")
    ] = 0.0,
    farewell: Annotated[
        float, typer.Option(min=0, help="Seconds that answers may go on when the server is told to end.")
    ] = FAREWELL,
    cors: Annotated[
        list[str] | None, typer.Option(help="Origin that browsers may call from, or '*'; may be repeated.")
    ] = None,
    metrics: Annotated[bool, typer.Option(help="Whether /metrics answers.")] = True,
    log_level: Annotated[str, typer.Option(help=f"What is worth a line: {', '.join(LEVELS)}.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines are JSON.")] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="Log to this file, which may be moved away at any time.")
    ] = None,
    trace_requests: Annotated[
        Path | None, typer.Option(help="Write everything that is asked and answered to this file.")
    ] = None,
    threads: options.Threads = None,
    kv_dtype: options.KvDtype = "f16",
    context: options.Context = None,
    memory: options.Memory = "auto",
    streaming: options.Streaming = "auto",
    policy: options.Policy = "auto",
    prefetch: options.Prefetch = "auto",
    pack: options.Pack = "auto",
    trace: options.Trace = None,
) -> None:
    """Answer requests over HTTP.

    Example: penstock serve -m model.gguf --port 8080
    """
    settings = Settings(
        host=host,
        port=port,
        name=name,
        api_keys=read_keys(api_key or [], api_key_file),
        parallel=parallel,
        queue=queue,
        max_body=parse_size(max_body, "--max-body"),
        max_tokens=max_tokens,
        timeout=timeout,
        body_timeout=body_timeout,
        cors=tuple(cors or ()),
        metrics=metrics,
        kv_dir=kv_dir,
        kv_space=parse_size(kv_space, "--kv-space"),
        park_after=park_after,
        trace_requests=trace_requests,
    )
    if park_after and trace is not None:
        raise OptionError("--park-after and --trace: an engine that records a trace cannot be parked")
    start_logging(log_level, log_json, log_file)
    if settings.host not in LOOPBACK:
        print(
            f"penstock: --host {settings.host}: others than this machine can connect, and what they send and hear is"
            " not encrypted",
            file=sys.stderr,
        )
    with listen(settings.host, settings.port) as door:  # before loading, which may take minutes for nothing
        engine = open_engine(
            model,
            threads=threads,
            kv_dtype=kv_dtype,
            context=context,
            sessions=parallel,
            memory=memory,
            streaming=streaming,
            policy=policy,
            prefetch=prefetch,
            pack=pack,
            trace=trace,
            load=False,  # the scheduler does it, while the server tells how far it is
        )
        server = Server(Service(engine, settings), farewell)
        print(f"penstock: listening on {address(door)}", flush=True)
        run(server, door)


def read_keys(given: list[str], file: Path | None) -> tuple[str, ...]:
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
    if KEY_VARIABLE in os.environ:
        keys.append(os.environ[KEY_VARIABLE])
    return tuple(keys)


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

    def __init__(self, service: Service, farewell: float = FAREWELL):
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
