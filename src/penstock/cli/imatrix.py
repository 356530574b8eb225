"""What `penstock imatrix` does: which columns of every weight count, measured on a text."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.opening import open_engine
from penstock.engine.imatrix import Chunk, InputCollector
from penstock.engine.options import EngineOptions
from penstock.errors import OptionError
from penstock.sizes import size
from penstock.weights.imatrix import write_imatrix


def collect(
    model: Path,
    chosen: EngineOptions,
    texts: list[Path],
    output: Path,
    chunk_size: int,
    chunks: int | None,
    special: bool,
    json_output: bool,
) -> None:
    text = "\n".join(map(_read, texts))
    begin = time.perf_counter()
    chosen = replace(chosen, device="cpu")  # where inputs can be observed
    engine = open_engine(model, chosen, load=False)
    needed = InputCollector.bytes_needed(engine)
    if chosen.memory is not None and engine.plan.budget is not None:
        # What is collected is the process's memory too.
        engine.close()
        engine = open_engine(model, replace(chosen, memory=engine.plan.budget - needed), load=False)
    with engine:
        tokens = engine.tokenizer.encode(text, special=special)
        if chunks is not None:
            tokens = tokens[: chunks * chunk_size]
        collector = InputCollector(engine)
        last = _with_bar(collector, tokens, chunk_size)
        found = collector.imatrix([str(path) for path in texts])
    write_imatrix(found, output)
    seen = [entry.counts > 0 for name, entry in found.entries.items() if "_exps" in name]
    experts = float(sum(each.sum() for each in seen)) / max(1, sum(each.size for each in seen))
    nbytes, seconds = os.path.getsize(output), time.perf_counter() - begin
    report = {
        "output": str(output),
        "bytes": nbytes,
        "entries": len(found.entries),
        "chunks": last.done,
        "tokens": last.done * chunk_size,
        "perplexity": last.perplexity,
        "experts_seen": experts,
        "seconds": seconds,
    }
    if json_output:
        print(json.dumps(report))
        return
    print(
        f"{output}: {report['entries']} weights, {size(nbytes)}; {report['tokens']:,} tokens in "
        f"{seconds:.1f} s, perplexity {last.perplexity:.3f}; {experts:.1%} of the experts were needed"
    )


def _read(path: Path) -> str:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else f"not UTF-8: {error}"
        raise OptionError(f"{path}: cannot be read: {problem}") from None
    return text


def _with_bar(collector: InputCollector, tokens: list[int], chunk_size: int) -> Chunk:
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading weights", total=None)
        for chunk in collector.read(tokens, chunk_size):
            bar.update(
                task, completed=chunk.done, total=chunk.of, description=f"perplexity {chunk.perplexity:.3f}"
            )
    return chunk
