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
    experts: Annotated[
        str,
        typer.Option(
            help="Compute routed experts alone, at most this share of every layer's, for a head with --stages 1; "
            "auto: as many as memory holds.",
            metavar="auto|SHARE",
        ),
    ] = "",
    once: Annotated[
        bool, typer.Option("--once", help="End when the head ends; else wait for it to come back.")
    ] = False,
) -> None:
    """Run some layers or experts of a model for `penstock serve --cluster` on another machine.

    Example: penstock worker -m model.gguf --join 192.168.1.10:7600 --secret cluster.secret
    """
    penstock.cluster.require()
    # What computes is loaded when there is something to compute.
    from penstock.cluster.door import parse_address
    from penstock.cluster.expert_worker import ExpertWorker, parse_share
    from penstock.cluster.worker import StageWorker
    from penstock.engine.opening import open_model

    host, port = parse_address(join, "--join")
    share = parse_share(experts, "--experts") if experts else None
    checkpoint = open_model(model or options.default_model(), chosen)
    if share is None:
        StageWorker(checkpoint, chosen, host, port, _tell).run(once)
    else:
        ExpertWorker(checkpoint, chosen, host, port, _tell, share=share).run(once)


def _tell(words: str) -> None:
    print(f"penstock: {words}", file=sys.stderr, flush=True)
