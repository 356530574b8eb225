"""`penstock pull`: a model from Hugging Face, or what there is."""

from typing import Annotated

import typer

from penstock.cli import options


def pull_command(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|REPO[:FILE]]",
            help="A name from the list that the command shows without it, or a repository on Hugging Face; FILE is a "
            "file, a quantisation such as Q4_K_M, or a part of a name.",
        ),
    ] = None,
    mtp: Annotated[
        bool, typer.Option("--mtp", help="Also the file with the draft block that goes with the model.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only say what would be downloaded, and how the model would run here."
        ),
    ] = False,
    json_output: options.Json = False,
) -> None:
    """Download a model from Hugging Face; without a name, show which there are and how they would run here.

    A download that was interrupted goes on where it ended.  HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT and
    HF_HUB_OFFLINE mean what they mean everywhere.

    Example: penstock pull antirez/deepseek-v4-gguf:q2
    """
    from penstock.cli.pull import pull, show_known

    if model is None:
        show_known(json_output)
    else:
        pull(model, mtp, dry_run, json_output)
