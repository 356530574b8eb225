"""`penstock serve`: the model for everybody who speaks OpenAI's, Anthropic's or llama.cpp's API."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import options
from penstock.cli.opening import LoadingBar, open_engine
from penstock.errors import OptionError
from penstock.server.http.settings import LOG_LEVELS, LOOPBACK, Settings
from penstock.sizes import parse_size

KEY_VARIABLE: Final = "PENSTOCK_API_KEY"
FAREWELL: Final = 10.0  # seconds that answers may go on after the server was told to end


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
    log_level: Annotated[str, typer.Option(help=f"What is worth a line: {', '.join(LOG_LEVELS)}.")] = "info",
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
    # The web framework is imported here: other commands start without it.
    from penstock.server.http.server import Server, address, listen
    from penstock.server.observe.logs import start_logging
    from penstock.server.service import Service

    start_logging(log_level, log_json, log_file)
    if settings.host not in LOOPBACK:
        print(
            f"penstock: --host {settings.host}: others than this machine can connect, and what they send and hear is"
            " not encrypted",
            file=sys.stderr,
        )
    with listen(
        settings.host, settings.port
    ) as listener:  # before loading, which may take minutes for nothing
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
        server = Server(Service(engine, settings), farewell, LoadingBar().show)
        print(f"penstock: listening on {address(listener)}", flush=True)
        server.run_until_signal(listener)


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
