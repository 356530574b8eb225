"""`penstock serve`: the model for everybody who speaks OpenAI's, Anthropic's or llama.cpp's API."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options
from penstock.engine.options import EngineOptions
from penstock.environment import API_KEY
from penstock.errors import OptionError
from penstock.machine.memory import read_memory
from penstock.machine.pages import keep_little_freed
from penstock.server.http.settings import LOG_LEVELS, LOOPBACK, Settings


@options.with_flags
def serve_command(
    given: partial[Settings],
    engine_given: partial[EngineOptions],
    model: options.Model = None,
    log_level: Annotated[str, typer.Option(help=f"What is worth a line: {', '.join(LOG_LEVELS)}.")] = "info",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines are JSON.")] = False,
    log_file: Annotated[
        Path | None, typer.Option(help="Log to this file, which may be moved away at any time.")
    ] = None,
) -> None:
    """Answer requests over HTTP.

    Example: penstock serve -m model.gguf --port 8080
    """
    key = API_KEY.read()
    settings = given(api_keys=(*given.keywords["api_keys"], *([] if key is None else [key])))
    chosen = engine_given(sessions=settings.parallel)
    if settings.park_after and chosen.trace is not None:
        raise OptionError("--park-after and --trace: an engine that records a trace cannot be parked")
    # What computes and the web framework are loaded when there is something to serve.
    from penstock.cli.opening import LoadingBar, open_engine
    from penstock.server.http.server import Server, address, listen
    from penstock.server.http.tls import Certificate
    from penstock.server.http.work import request_memory, share_of
    from penstock.server.observe.logs import start_logging
    from penstock.server.service import Service

    budget = read_memory().safe_budget() if chosen.memory == "auto" else chosen.memory_bytes
    requests = request_memory(settings.max_body) if settings.max_body else share_of(budget)
    chosen = replace(chosen, request_bytes=requests)
    keep_little_freed()
    start_logging(log_level, log_json, log_file)
    certificate = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        certificate = Certificate(settings.tls_cert, settings.tls_key)
    for line in warnings_of(settings):
        print(f"penstock: {line}", file=sys.stderr)
    with listen(
        settings.host, settings.port
    ) as listener:  # before loading, which may take minutes for nothing
        # The scheduler loads, while the server tells how far it is.
        engine = open_engine(model, chosen, load=False)
        server = Server(Service(engine, settings), settings.farewell, LoadingBar().show, certificate)
        scheme = "http" if certificate is None else "https"
        print(f"penstock: listening on {address(listener, scheme)}", flush=True)
        server.run_until_signal(listener)


def warnings_of(settings: Settings) -> list[str]:
    """What whoever starts a server beyond this machine should know."""
    if settings.host in LOOPBACK:
        return []
    where, lines = f"--host {settings.host}", []
    if settings.no_key:
        lines.append(
            f"WARNING: {where} with --no-key: whoever can reach this machine may use the model, see how it is used, "
            "erase sessions and take the weights out of memory; --api-key-file keeps strangers out"
        )
    if settings.tls_cert is None:
        lines.append(
            f"{where}: what others send and hear, keys included, is not encrypted; --tls-cert and --tls-key do that"
        )
    return lines
