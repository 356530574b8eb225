"""What `penstock pull` does: fetches a model from Hugging Face, or shows what there is."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.cli.fitness import Fitness, Machine
from penstock.errors import HubError
from penstock.hub.cache import cache_folder
from penstock.hub.catalog import Known, known_by_name, read_catalog
from penstock.hub.find import download_model
from penstock.hub.outline import outline_known, outline_remote
from penstock.hub.pull import Wanted, check_room, existing, free_bytes, look_up
from penstock.hub.reference import Reference, parse_reference
from penstock.sizes import disk_size, size


def pull(model: str, mtp: bool, dry_run: bool, json_output: bool) -> None:
    known = known_by_name(model)
    reference = _reference(model) if known is None else known.reference
    if dry_run:
        _show_wanted(look_up(reference), mtp, json_output)
        return
    wanted, path = download_model(reference, with_draft=mtp)
    if json_output:
        print(json.dumps({**_report(wanted, mtp), "path": str(path)}))
        return
    print(path)  # the rest is for a person
    print(
        f'penstock: run it with `penstock run -m {_short(reference, known)} "Why is the sky blue?"`',
        file=sys.stderr,
    )
    if wanted.draft is not None and not mtp:
        print(
            f"penstock: a draft block goes with it, {wanted.draft.path} ({disk_size(wanted.draft.size)}): the same "
            "command with --mtp downloads it, and --draft mtp uses it",
            file=sys.stderr,
        )


def _reference(model: str) -> Reference:
    try:
        return parse_reference(model)
    except HubError as error:
        names = ", ".join(each.name for each in read_catalog().models)
        raise HubError(f"{error}, or one of {names}") from None


def _short(reference: Reference, known: Known | None) -> str:
    return f"hf:{reference}" if known is None else known.name


# ── one model ─────────────────────────────────────────────────────────────────────────────────────────────────


def _report(wanted: Wanted, mtp: bool) -> dict[str, Any]:
    files = wanted.files(mtp)
    return {
        "repo": wanted.listing.repo,
        "commit": wanted.listing.commit,
        "files": [file._asdict() for file in files],
        "bytes": sum(file.size for file in files),
        "draft": None if wanted.draft is None else wanted.draft.path,
    }


def _show_wanted(wanted: Wanted, mtp: bool, json_output: bool) -> None:
    files = wanted.files(mtp)
    missing, free = wanted.bytes_missing(files), free_bytes(wanted.repository.folder)
    with Console(stderr=True).status("reading headers …"), TemporaryDirectory() as folder:
        outline = outline_remote(wanted.listing, wanted.model, Path(folder))
        fitness = Machine().judge(outline, existing(cache_folder()))
    if json_output:
        more = {"bytes_missing": missing, "bytes_free": free, **fitness._asdict()}
        print(json.dumps(_report(wanted, mtp) | more))
        return
    for file in files:
        print(f"{disk_size(file.size):>9}  {file.path}")
    print(
        f"{disk_size(missing):>9}  to download to {wanted.repository.folder}, which has {disk_size(free)} free"
    )
    print(
        f"here: {fitness.words}; the least memory is {_amount(fitness.smallest)}, all of it takes "
        f"{_amount(fitness.whole)}"
    )
    check_room(wanted, files)


def _amount(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else size(nbytes)


# ── the known ones ────────────────────────────────────────────────────────────────────────────────────────────


def show_known(json_output: bool) -> None:
    catalog, folder = read_catalog(), existing(cache_folder())
    with Console(stderr=True).status("planning for this machine …"):
        found = judge_known(Machine(), folder)
    free = free_bytes(folder)
    best = recommended(found, free)
    if json_output:
        rows = [
            {
                "name": known.name,
                "repo": known.repo,
                "file": known.file or None,
                "release": known.release,
                "stored": known.stored,
                "bytes": known.size,
                "exact": known.bytes is not None,
                **(fitness._asdict() if fitness else {"fits": None}),
                "recommended": known is best,
            }
            for known, fitness in found
        ]
        print(json.dumps({"date": str(catalog.date), "bytes_free": free, "models": rows}))
        return
    table = Table(
        title=f"DeepSeek-V4-Flash on Hugging Face, as known on {catalog.date}", title_justify="left", box=None
    )
    for column, justify in (
        ("name", "left"),
        ("size", "right"),
        ("release", "left"),
        ("here", "left"),
        ("stored", "left"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for known, fitness in found:
        here = fitness.words if fitness else "unknown; --dry-run reads its header"
        large = known.size is not None and known.size > free
        amount = disk_size(known.size) if known.size else "unknown"
        table.add_row(
            f"[bold]{known.name}[/]" if known is best else known.name,
            f"[yellow]{amount} *[/]" if large else f"{amount}  ",
            known.release,
            here,
            known.stored,
        )
    console = Console(highlight=False)
    console.print(table)
    if any(known.size is not None and known.size > free for known, _ in found):
        console.print(f"* larger than the {disk_size(free)} that {folder} has free", markup=False)
    if best is not None:
        console.print(f"recommended here: penstock pull {best.name}", markup=False)
        return
    best = recommended(found, free=1 << 60)
    if best is not None and best.size is not None:
        console.print(
            f"recommended here: {best.name}, for which {folder} has too little room ({disk_size(free)} are free); "
            f"HF_HOME=PLACE penstock pull {best.name}",
            markup=False,
        )


def judge_known(machine: Machine, place: Path) -> list[tuple[Known, Fitness | None]]:
    """Every model of the catalog, and how it would run; None where it is not known how it is stored."""
    found: list[tuple[Known, Fitness | None]] = []
    planned: dict[str, Fitness] = {}
    with TemporaryDirectory() as folder:
        for known in read_catalog().models:
            shape = f"{known.rest} {known.experts}"
            if shape not in planned and (path := outline_known(known, Path(folder))) is not None:
                planned[shape] = machine.judge(path, place)
                path.unlink()
            found.append((known, planned.get(shape)))
    return found


def recommended(found: list[tuple[Known, Fitness | None]], free: int) -> Known | None:
    """The largest of those that memory holds wholly; if it holds none, the smallest, of which least has to come from
    the disk.  None: the disk has no room for any."""
    rooms = [(known, fitness) for known, fitness in found if fitness and known.size and known.size <= free]
    held = [known for known, fitness in rooms if fitness.fits == "memory"]
    running = [known for known, fitness in rooms if fitness.fits != "no"]
    if held:
        return max(held, key=lambda known: known.size or 0)
    return min(running, key=lambda known: known.size or 0, default=None)
