"""`penstock worker`: some layers of a model, for a head on another machine."""

import sys
from typing import Annotated

import typer

import penstock.cluster
from penstock.cli import options
from penstock.engine.options import EngineOptions


@options.with_flags
def worker_command(
    chosen: EngineOptions,
    join: Annotated[str, typer.Option("--join", help="HOST:PORT of the head, as its --cluster says.")],
    model: options.Model = None,
    once: Annotated[
        bool, typer.Option("--once", help="End when the head ends; else wait for it to come back.")
    ] = False,
) -> None:
    """Run some layers of a model for `penstock serve --cluster` on another machine.

    Example: penstock worker -m model.gguf --join 192.168.1.10:7600 --secret cluster.secret
    """
    penstock.cluster.require()
    # What computes is loaded when there is something to compute.
    from penstock.cluster.door import parse_address
    from penstock.cluster.worker import Worker
    from penstock.engine.opening import open_model

    host, port = parse_address(join, "--join")
    checkpoint = open_model(model or options.default_model(), chosen)
    Worker(checkpoint, chosen, host, port, _tell).run(once)


def _tell(words: str) -> None:
    print(f"penstock: {words}", file=sys.stderr, flush=True)
