"""`penstock trace`: record which experts a model needs, and find out what a cache would make of it."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock.bench.svg import check_picture
from penstock.chat.driver import ChatDriver
from penstock.chat.messages import question
from penstock.cli import options
from penstock.cli.command import PLAIN
from penstock.cli.trace_plot import draw
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError, TraceError
from penstock.sizes import parse_size, size
from penstock.storage.policies import POLICIES
from penstock.storage.policy_choice import SHORTEST
from penstock.storage.replay import OPTIMUM, Replayed, curve
from penstock.storage.trace import Trace, TraceHeader, read_trace

Curves = dict[str, tuple[Replayed, ...]]

trace_app = typer.Typer(
    name="trace",
    help="Record which experts are needed; compare caches on the record.",
    no_args_is_help=True,
    add_completion=False,
    **PLAIN,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="A recorded trace.")]
SIZES = "Sizes of the cache: amounts such as 4GiB, or shares of all experts such as 10%."
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
    # Greedy text falls into loops, and loops make any cache look good.
    sampling = Sampling(temperature=1.0, seed=0, ignore_eos=True)
    console = Console(stderr=True)
    with Engine(model or options.default_model(), threads=chosen.threads, trace=output) as engine:
        steps = engine.generate(ChatDriver(engine).reply(question(prompt)).prompt.ids, tokens, sampling)
        for _ in track(steps, "recording", tokens, console=console, disable=not console.is_terminal):
            pass
    print(f"{output}: {tokens:,} tokens recorded")
    if tokens < SHORTEST:
        print(f"too few for --policy auto to go by: that takes {SHORTEST} or more")


@trace_app.command("replay")
def replay_command(
    file: File,
    policy: Annotated[str, typer.Option(help=f"Policies, or all: {', '.join(POLICIES)}.")] = "all",
    sizes: Annotated[str, typer.Option("--size", help=SIZES)] = "3%,6%,12%,25%,50%",
    json_output: options.Json = False,
) -> None:
    """Show how often each policy would have found its experts in memory.

    Example: penstock trace replay chat.trace.gz --policy lru,lfu --size 8GiB,16GiB
    """
    trace = _read(file)
    curves = _curves(trace, _parse_policies(policy), _parse_sizes(sizes, trace))
    if json_output:
        print(json.dumps(_as_dict(trace, curves)))
    else:
        _print(file, trace, curves)


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
    trace = _read(file)
    curves = _curves(trace, _parse_policies(policy), _parse_sizes(sizes, trace))
    try:
        output.write_text(draw(file.name, trace.header.total_bytes, curves))
    except OSError as error:
        raise OptionError(f"{output}: cannot be written: {error.strerror}") from None


def _read(path: Path) -> Trace:
    trace = read_trace(path)
    if not len(trace.keys):
        raise TraceError(f"{path}: no requests were recorded")
    return trace


def _parse_policies(text: str) -> list[str]:
    if text == "all":
        return list(POLICIES)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in POLICIES:
            raise OptionError(f"--policy: {name!r} is unknown, expected all or some of {', '.join(POLICIES)}")
    return list(dict.fromkeys(names))


def _parse_sizes(text: str, trace: Trace) -> list[int]:
    """Bytes, in rising order, each once."""
    return sorted({_parse_one_size(word.strip(), trace.header) for word in text.split(",")})


def _parse_one_size(word: str, header: TraceHeader) -> int:
    largest = max(header.block_bytes)
    if word.endswith("%"):
        return max(largest, int(header.total_bytes * _parse_share(word)))  # of a tiny model, 3% may be less
    found = parse_size(word, "--size")
    if found < largest:
        raise OptionError(f"--size is {word!r}, which cannot hold one expert of {size(largest)}")
    return found


def _parse_share(word: str) -> float:
    with suppress(ValueError):
        if 0 < float(word[:-1]) <= 100:
            return float(word[:-1]) / 100
    raise OptionError(f"--size is {word!r}, expected an amount such as 8GiB or a share such as 10%")


def _curves(trace: Trace, policies: Sequence[str], capacities: Sequence[int]) -> Curves:
    console = Console(stderr=True)
    names = [*policies, OPTIMUM]
    steps = track(names, "replaying", console=console, transient=True, disable=not console.is_terminal)
    return {name: curve(trace, [name], capacities)[name] for name in steps}


def _best(curves: Curves, column: int) -> str:
    """The real policy that reads least at this size."""
    return min((name for name in curves if name != OPTIMUM), key=lambda name: curves[name][column].bytes_read)


def _as_dict(trace: Trace, curves: Curves) -> dict[str, object]:
    results = [result for row in curves.values() for result in row]
    return {
        "model": trace.header.model,
        "requests": len(trace.steps),
        "accesses": len(trace.keys),
        "expert_bytes": trace.header.total_bytes,
        "notes": list(trace.notes),
        "best": {str(r.capacity): _best(curves, column) for column, r in enumerate(curves[OPTIMUM])},
        "results": [
            {
                "policy": result.policy,
                "size": result.capacity,
                "hit_rate": round(result.hit_rate, 6),
                "hits": result.hits,
                "misses": result.misses,
                "evictions": result.evictions,
                "bytes_read": result.bytes_read,
                "block_hits": list(result.block_hits),
                "block_misses": list(result.block_misses),
            }
            for result in results
        ],
    }


def _print(path: Path, trace: Trace, curves: Curves) -> None:
    console = Console(highlight=False)
    total = trace.header.total_bytes
    console.print(
        f"{path}: {len(trace.keys):,} uses of experts in {len(trace.steps):,} requests; all experts: {size(total)}",
        markup=False,
    )
    table = Table("hit rate", box=None)
    for result in curves[OPTIMUM]:
        table.add_column(f"{size(result.capacity)} ({result.capacity / total:.0%})", justify="right")
    best = [_best(curves, column) for column in range(len(curves[OPTIMUM]))]
    for name, row in curves.items():
        marks = ("* " if name == winner else "" for winner in best)
        table.add_row(
            name, *(f"{mark}{result.hit_rate:.1%}" for mark, result in zip(marks, row, strict=True))
        )
    console.print(table)
    console.print(f"* reads least at this size; {OPTIMUM} knows the future and is the limit")
    for note in trace.notes:
        console.print(f"note: {note}", markup=False)
