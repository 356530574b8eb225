"""`penstock serve`: the model for everybody who speaks OpenAI's, Anthropic's or llama.cpp's API."""

import sys
from collections.abc import Sequence
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
from penstock.server.http.settings import LOG_LEVELS, LOOPBACK, Settings


@options.with_flags
def serve_command(
    given: partial[Settings],
    engine_given: partial[EngineOptions],
    model: options.Model = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file with a key in each line.")] = None,
    log_level: Annotated[str, typer.Option(help=f"What is worth a line: {', '.join(LOG_LEVELS)}.")] = "info",
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
    # What computes and the web framework are loaded when there is something to serve.
    from penstock.cli.opening import LoadingBar, open_engine
    from penstock.server.http.server import Server, address, listen
    from penstock.server.http.work import request_memory, share_of
    from penstock.server.observe.logs import start_logging
    from penstock.server.service import Service

    budget = read_memory().safe_budget() if chosen.memory == "auto" else chosen.memory_bytes
    requests = request_memory(settings.max_body) if settings.max_body else share_of(budget)
    chosen = replace(chosen, request_bytes=requests)
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
        # The scheduler loads, while the server tells how far it is.
        engine = open_engine(model, chosen, load=False)
        server = Server(Service(engine, settings), settings.farewell, LoadingBar().show)
        print(f"penstock: listening on {address(listener)}", flush=True)
        server.run_until_signal(listener)


def read_keys(given: Sequence[str], file: Path | None) -> tuple[str, ...]:
    """All keys: those that were given, those in the file, and the one in the environment."""
    keys = list(given)
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise OptionError(f"--api-key-file {file}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise OptionError(f"--api-key-file {file}: not UTF-8 text") from None
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise OptionError(f"--api-key-file {file}: there is no key in it")
        keys += found
    key = API_KEY.read()
    return tuple(keys if key is None else [*keys, key])
