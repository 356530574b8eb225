"""`penstock plan`: what goes where in a budget of memory, and how fast it should be, before anything is loaded."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options
from penstock.engine.options import EngineOptions
from penstock.errors import OptionError
from penstock.sizes import parse_size
from penstock.storage.policies import POLICIES


@options.with_flags
def plan_command(
    chosen: EngineOptions,
    model: options.Model = None,
    trace: Annotated[
        Path | None, typer.Option(help="A recorded trace: expect what it asked for, not what was learned.")
    ] = None,
    policy: Annotated[
        str, typer.Option(help="The policy to expect with a trace.", metavar="|".join(POLICIES))
    ] = "lfru",
    several: Annotated[
        str, typer.Option("--budgets", help="Compare these amounts of memory, such as 4GiB,8GiB,16GiB.")
    ] = "",
    cluster: Annotated[
        str,
        typer.Option(
            help="Plan for machines with these amounts of memory, this one first, such as 16GiB,32GiB*2: the second "
            "twice as fast."
        ),
    ] = "",
    expert_workers: Annotated[
        str, typer.Option(help="With one machine in --cluster: expert workers with these amounts of memory.")
    ] = "",
    link: Annotated[float, typer.Option(help="Gb/s of the network between them.")] = 1.0,
    latency: Annotated[float, typer.Option(help="Milliseconds that a message takes, one way.")] = 0.1,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this machine and its disk again.")
    ] = False,
    json_output: options.Json = False,
) -> None:
    """Show what a model would take from a budget of memory, and the speed to expect.

    Example: penstock plan -m model.gguf --memory 16GiB --ctx 32768
    """
    if several and chosen.device.startswith("cuda"):
        raise OptionError(f"--budgets compares amounts of the machine's memory; device is {chosen.device!r}")
    amounts = [parse_size(each, "--budgets") for each in several.split(",")] if several else []
    from penstock.cli.plan import compare_budgets, show_plan

    path = model or options.default_model()
    if cluster:
        from penstock.cli.plan_cluster import Asked, show_cluster_plan

        asked = Asked(cluster, expert_workers, link, latency)
        show_cluster_plan(path, chosen, asked, measure, json_output)
    elif amounts:
        compare_budgets(path, chosen, amounts, json_output)
    else:
        show_plan(path, chosen, trace, policy, measure, json_output)
