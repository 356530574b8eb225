"""`penstock imatrix`: which columns of every weight count, measured on a text."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import options
from penstock.engine.options import EngineOptions
from penstock.errors import OptionError


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
    from penstock.cli.imatrix import collect

    collect(model or options.default_model(), chosen, texts, output, chunk_size, chunks, special, json_output)
