"""`penstock imatrix`: which columns of every weight count, measured on a text."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli import options
from penstock.cli.opening import open_engine
from penstock.engine.imatrix import Chunk, InputCollector
from penstock.engine.options import EngineOptions
from penstock.errors import OptionError
from penstock.sizes import size
from penstock.weights.imatrix import write_imatrix


@options.with_flags
def imatrix_command(
    texts: Annotated[list[Path], typer.Argument(metavar="TEXT…", help="Files of text; - is standard input.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write, in llama.cpp's format.")],
    chosen: EngineOptions,
    model: options.Model = None,
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", "-c", min=2, help="Tokens of a chunk, each read by itself.")
    ] = 512,
    chunks: Annotated[int | None, typer.Option("--chunks", min=1, help="Read only so many chunks.")] = None,
    special: Annotated[
        bool, typer.Option("--special", help="Markers of turns in the text are markers.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    json_output: options.Json = False,
) -> None:
    """Measure on a text which columns of every weight count, for `penstock quantize`.

    Experts stream from disk as they do otherwise, so the model may be larger than memory.

    Example: penstock imatrix -m flash-mxfp4.gguf calibration.txt -o flash.imatrix.gguf
    """
    if output.exists() and not force:
        raise OptionError(f"{output}: exists already; --force replaces it")
    if not output.parent.is_dir() or output.is_dir():
        raise OptionError(f"{output}: expected the name of a file to write")
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
