"""`penstock trace`: record which experts a model needs, and find out what a cache would make of it."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.bench.svg import check_picture
from penstock.cli import options
from penstock.cli.command import PLAIN
from penstock.engine.options import EngineOptions
from penstock.errors import OptionError
from penstock.storage.policies import POLICIES

trace_app = typer.Typer(
    name="trace",
    help="Record which experts are needed; compare caches on the record.",
    no_args_is_help=True,
    add_completion=False,
    **PLAIN,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A recorded trace.")]
SIZES = "Sizes of the cache: amounts such as 4GiB, or shares of all experts such as 10%."
TIERS = "Bytes for experts in a GPU's memory and in RAM, such as 12GiB,24GiB: what each tier would have had."
SPEEDS = "With --tiers: GB/s at which experts cross to the GPU, are computed by the CPU and are read from the disk."
PROMPT = "Describe the journey of a drop of rain from the clouds to the sea."


@trace_app.command("record")
@options.with_flags
def trace_record_command(
    chosen: EngineOptions,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; .gz compresses it.")],
    model: options.Model = None,
    tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 256,
    prompt: Annotated[str, typer.Option(help="What to say to the model.")] = PROMPT,
) -> None:
    """Generate text and record which experts each layer needs.

    Example: penstock trace record -m model.gguf -o chat.trace.gz --tokens 500
    """
    if not prompt.strip():
        raise OptionError("--prompt is empty, expected something to say")
    from penstock.cli.trace import record

    record(model or options.default_model(), chosen, output, tokens, prompt)


@trace_app.command("replay")
def replay_command(
    file: File,
    policy: Annotated[str, typer.Option(help=f"Policies, or all: {', '.join(POLICIES)}.")] = "all",
    sizes: Annotated[str, typer.Option("--size", help=SIZES)] = "3%,6%,12%,25%,50%",
    tiers: Annotated[str | None, typer.Option(metavar="VRAM,MEMORY", help=TIERS)] = None,
    speeds: Annotated[str, typer.Option(metavar="LINK,CPU,DISK", help=SPEEDS)] = "25,40,3",
    json_output: options.Json = False,
) -> None:
    """Show how often each policy would have found its experts in memory.

    Example: penstock trace replay chat.trace.gz --policy lru,lfu --size 8GiB,16GiB
    """
    policies = _parse_policies(policy)
    if tiers is not None:
        from penstock.cli.trace_tiers import replay_in_tiers

        replay_in_tiers(file, policies, tiers, speeds, json_output)
        return
    from penstock.cli.trace import replay

    replay(file, policies, sizes, json_output)


@trace_app.command("plot")
def plot_command(
    file: File,
    output: Annotated[Path, typer.Option("--output", "-o", help="SVG file to write.")],
    policy: Annotated[str, typer.Option(help=f"Policies, or all: {', '.join(POLICIES)}.")] = "all",
    sizes: Annotated[str, typer.Option("--size", help=SIZES)] = "2%,4%,7%,10%,15%,20%,30%,40%,60%,80%,100%",
) -> None:
    """Draw hit rates over sizes of the cache.

    Example: penstock trace plot chat.trace.gz -o curves.svg
    """
    check_picture(output, "--output")
    policies = _parse_policies(policy)
    from penstock.cli.trace import plot

    plot(file, policies, sizes, output)


def _parse_policies(text: str) -> list[str]:
    if text == "all":
        return list(POLICIES)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise OptionError(f"--policy: {name!r} is unknown, expected all or some of {', '.join(POLICIES)}")
    return list(dict.fromkeys(names))
