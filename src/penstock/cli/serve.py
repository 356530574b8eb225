"""`penstock serve`: the model for everybody who speaks OpenAI's, Anthropic's or llama.cpp's API."""

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Annotated, Final

import typer
import uvicorn

from penstock.cli import options
from penstock.cli.opening import open_engine
from penstock.errors import OptionError
from penstock.server.app import create_app
from penstock.server.body_limit import BodyLimit
from penstock.server.service import Service
from penstock.server.settings import Settings

KEY_VARIABLE: Final = "PENSTOCK_API_KEY"
FAREWELL: Final = 10  # seconds that answers may go on after the server was told to end


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
    cors: Annotated[
        list[str] | None, typer.Option(help="Origin that browsers may call from, or '*'; may be repeated.")
    ] = None,
    metrics: Annotated[bool, typer.Option(help="Whether /metrics answers.")] = True,
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
        max_tokens=max_tokens,
        cors=tuple(cors or ()),
        metrics=metrics,
    )
    with listen(settings.host, settings.port) as door:  # before loading, which may take minutes for nothing
        engine = open_engine(
            model,
            threads=threads,
            kv_dtype=kv_dtype,
            context=context,
            memory=memory,
            streaming=streaming,
            policy=policy,
            prefetch=prefetch,
            pack=pack,
            trace=trace,
        )
        print(f"penstock: listening on {address(door)}", flush=True)
        run(Server(Service(engine, settings)), door)


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
    """A service on the web.  When it is told to end, answers may go on for `farewell` seconds; what is left then is
    told so, and ends as any failed answer does."""

    def __init__(self, service: Service, farewell: float = FAREWELL):
        self.service, self.farewell = service, farewell
        super().__init__(
            uvicorn.Config(
                BodyLimit(create_app(service), service.settings.max_body),
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=int(farewell) + 5,  # for clients that do not listen
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.ensure_future(asyncio.to_thread(self.service.scheduler.stop, self.farewell))
        await super().shutdown(sockets)
        await ending


def run(server: Server, door: socket.socket) -> None:
    """Until SIGTERM or SIGINT."""

    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn raises the signal again once it is done; with this that is the orderly end that was asked for.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server.run(sockets=[door])
