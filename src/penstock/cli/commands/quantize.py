"""`penstock quantize`: a model as a GGUF file in other types."""

from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli import options

# As `weights.mixes` has them, which takes longer to load than help may.
MIXES: Final = (
    "q2",
    "q2-q4",
    "q2_k",
    "q3",
    "q4",
    "q5",
    "q6",
    "mxfp4",
    "mxfp4_q8_0",
    "q8_0",
    "bf16",
    "f16",
    "f32",
)
PARTS: Final = (  # of a model
    *("experts", "gate", "up", "down", "shared", "attention", "indexer"),
    *("compressor", "router", "embedding", "output", "mixing", "draft"),
)


def quantize_command(
    source: Annotated[Path, typer.Argument(help="GGUF file, checkpoint folder, or hf:REPO[:FILE].")],
    destination: Annotated[Path, typer.Argument(help="GGUF file to write.")],
    mix: Annotated[
        str,
        typer.Option(
            help=f"Types of the weights: {', '.join(MIXES)}; changes follow behind commas, as in "
            f"q4,down=q6_k ({', '.join(PARTS)}, other, or a pattern of names)."
        ),
    ],
    imatrix: Annotated[
        Path | None,
        typer.Option(help="Importance matrix, as `penstock imatrix` and llama-imatrix write it."),
    ] = None,
    mtp: Annotated[Path | None, typer.Option(help="Write the draft (MTP) block to this GGUF file.")] = None,
    mtp_inside: Annotated[
        bool, typer.Option("--mtp-inside", help="Write the draft block into the same file.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, help="CPU threads.", show_default="all cores")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    json_output: options.Json = False,
) -> None:
    """Write a model as one GGUF file in other types, for Penstock and llama.cpp.

    A run that was interrupted goes on where it was when the same command is given again.

    Example: penstock quantize DeepSeek-V4-Flash flash-q2.gguf --mix q2 --imatrix flash.imatrix.gguf
    """
    from penstock.cli.quantize import quantize

    quantize(source, destination, mix, imatrix, mtp, mtp_inside, force, threads, json_output)
