"""What `penstock trace` does: record which experts a model needs, and find out what a cache would make of it."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock.chat.driver import ChatDriver
from penstock.chat.messages import question
from penstock.cli.trace_plot import draw
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError, TraceError
from penstock.sizes import parse_size, size
from penstock.storage.policy_choice import SHORTEST
from penstock.storage.replay import OPTIMUM, Replayed, curve
from penstock.storage.trace import Trace, TraceHeader, read_trace

Curves = dict[str, tuple[Replayed, ...]]


def record(model: Path, chosen: EngineOptions, output: Path, tokens: int, prompt: str) -> None:
    # Greedy text falls into loops, and loops make any cache look good.
    sampling = Sampling(temperature=1.0, seed=0, ignore_eos=True)
    console = Console(stderr=True)
    with Engine(model, threads=chosen.threads, trace=output) as engine:
        steps = engine.generate(ChatDriver(engine).reply(question(prompt)).prompt.ids, tokens, sampling)
        for _ in track(steps, "recording", tokens, console=console, disable=not console.is_terminal):
            pass
    print(f"{output}: {tokens:,} tokens recorded")
    if tokens < SHORTEST:
        print(f"too few for --policy auto to go by: that takes {SHORTEST} or more")


def replay(file: Path, policies: Sequence[str], sizes: str, json_output: bool) -> None:
    trace = read_requests(file)
    curves = _curves(trace, policies, _parse_sizes(sizes, trace))
    if json_output:
        print(json.dumps(_as_dict(trace, curves)))
    else:
        _print(file, trace, curves)


def plot(file: Path, policies: Sequence[str], sizes: str, output: Path) -> None:
    trace = read_requests(file)
    curves = _curves(trace, policies, _parse_sizes(sizes, trace))
    try:
        output.write_text(draw(file.name, trace.header.total_bytes, curves))
    except OSError as error:
        raise OptionError(f"{output}: cannot be written: {error.strerror}") from None


def read_requests(path: Path) -> Trace:
    """A trace with something in it."""
    trace = read_trace(path)
    if not len(trace.keys):
        raise TraceError(f"{path}: no requests were recorded")
    return trace


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
