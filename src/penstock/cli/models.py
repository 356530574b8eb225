"""What `penstock models` shows and removes: the models that are here."""

import json
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from penstock.cli.fitness import Machine
from penstock.errors import HubError, OptionError, PenstockError
from penstock.hub.cache import repositories
from penstock.hub.library import POCKET, LocalModel, find_local, local_models
from penstock.hub.remove import bytes_of, remove
from penstock.sizes import size
from penstock.storage.pack import pack_path
from penstock.weights.opening import open_checkpoint
from penstock.weights.summary import summarise


def show_models(everything: bool, json_output: bool) -> None:
    with Console(stderr=True).status("looking around …"):  # shown only on a terminal
        machine = Machine()
        found = [_describe(model, machine) for model in local_models()]
    shown = [row for row in found if everything or row["problem"] is None]
    partial = _incomplete()
    if json_output:
        print(json.dumps({"models": shown, "incomplete": partial}))
        return
    table = Table(box=None)
    for column in ("name", "size", "stored", "here", "in"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for row in shown:
        here = row["here"] if row["problem"] is None else f"[dim]{escape(row['problem'])}[/]"
        table.add_row(row["name"], size(row["bytes"]), row["stored"] or "", here, row["where"])
    console = Console(highlight=False)
    console.print(table)
    if len(shown) < len(found):
        console.print(
            f"{len(found) - len(shown)} more in the cache cannot be run; --all shows them", style="dim"
        )
    for repo, nbytes in partial.items():
        console.print(
            f"incomplete: {size(nbytes)} of {repo}; `penstock pull` goes on with it, `penstock models rm {repo}` "
            "deletes it",
            markup=False,
        )
    if not any(row["where"] != "package" for row in shown):
        console.print("`penstock pull` shows what can be downloaded")


def _describe(model: LocalModel, machine: Machine) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": model.name,
        "path": str(model.path),
        "bytes": model.size,
        "where": model.where,
        "stored": None,
        "here": None,
        "problem": None,
    }
    try:
        summary = summarise(open_checkpoint(model.path))
        fitness = machine.judge(model.path, max(model.files, key=lambda file: file.stat().st_size))
    except PenstockError as error:
        return row | {"problem": str(error).partition("\n")[0].removeprefix(f"{model.path}: ")}
    kinds = [kind for kind, nbytes in summary["bytes_by_type"].items() if nbytes > summary["bytes"] / 20]
    return row | {"stored": " ".join(kinds), "here": fitness.words, **fitness._asdict()}


def _incomplete() -> dict[str, int]:
    """Bytes of downloads that were begun, by repository."""
    found = {}
    for repository in repositories():
        parts = (repository.folder / "blobs").glob("*.incomplete")
        if nbytes := sum(part.stat().st_size for part in parts):
            found[repository.repo] = nbytes
    return found


def remove_model(name: str, yes: bool) -> None:
    repository = next((found for found in repositories() if found.repo.lower() == name.lower()), None)
    model = None if repository else find_local(name)
    if model is not None and model.name == POCKET:
        raise OptionError("the pocket model is part of the package")
    files: list[Path]
    if repository is not None:
        what, files = f"all of {repository.repo}", [repository.folder]
    elif model is not None:
        pack = pack_path(model.path)
        what, files = model.name, [*model.files, *([pack] if pack.exists() else [])]
    else:
        raise HubError(f"{name}: no model here is called so (`penstock models` lists them)")
    nbytes = bytes_of(files)
    if not yes:
        if not sys.stdin.isatty():
            raise OptionError(f"{what} has {size(nbytes)}; --yes deletes it without asking")
        typer.confirm(f"Delete {what}, {size(nbytes)}?", abort=True)
    remove(files)
    print(f"{what}: {size(nbytes)} deleted")
