"""`penstock synth`: write a model with random weights."""

from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import options
from penstock.errors import OptionError

# As `weights.widths` and `weights.synth` have them, which take longer to load than help may.
WIDTHS: Final = ("flash", "pro", "tiny")
MIXES: Final = ("q2", "q4", "mxfp4", "q8_0", "f16")


def synth_command(
    destination: Annotated[Path, typer.Argument(metavar="DST", help="The .gguf file to write.")],
    width: Annotated[str, typer.Option(help=f"Size of the model: {', '.join(WIDTHS)}.")] = "tiny",
    layers: Annotated[
        int | None, typer.Option(help="Only the first so many layers.", show_default="all")
    ] = None,
    mix: Annotated[str, typer.Option(help=f"How matrices are stored: {', '.join(MIXES)}.")] = "q2",
    vocab: Annotated[
        int | None, typer.Option(help="Vocabulary size.", show_default="512, or 129280 as published")
    ] = None,
    skew: Annotated[
        float, typer.Option(help="Exponent of Zipf's law for how often experts are chosen; 0: all alike.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same file.")] = 0,
    ratios: Annotated[
        str | None,
        typer.Option(help="Compression ratio of each layer, e.g. 0,4,128.", show_default="as published"),
    ] = None,
    hash_layers: Annotated[
        int | None, typer.Option(help="How many first layers are hash-routed.", show_default="as published")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    json_output: options.Json = False,
) -> None:
    """Write a valid model with random weights, for tests and benchmarks."""
    wanted = {
        "width": width,
        "layers": layers,
        "mix": mix,
        "vocab": vocab,
        "skew": skew,
        "seed": seed,
        "ratios": _parse_ratios(ratios),
        "hash_layers": hash_layers,
    }
    from penstock.cli.synth import synth

    synth(wanted, destination, force, json_output)


def _parse_ratios(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--ratios is {text!r}, expected whole numbers such as 0,4,128") from None
