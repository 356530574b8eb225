"""What `penstock inspect` shows: a model file, before anything is run."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from penstock.hub.find import find_model
from penstock.sizes import size
from penstock.storage.plan import Sizes
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint
from penstock.weights.summary import roles, summarise, verify


def show_model(path: Path, mtp: Path | None, tensors: bool, check: bool, json_output: bool) -> None:
    opened = open_checkpoint(find_model(path, download=False), mtp)
    if check:
        _verify(opened)
    summary = describe(opened)
    if json_output:
        if tensors:
            summary["tensors"] = _tensor_rows(opened)
        print(json.dumps(summary))
        return
    console = Console()
    _print_summary(console, summary)
    if tensors:
        table = Table("tensor", "type", "shape", "bytes", "role", "file", box=None)
        for row in _tensor_rows(opened):
            table.add_row(
                row["name"], row["type"], str(row["shape"]), f"{row['bytes']:,}", row["role"], row["file"]
            )
        console.print(table)
    if check:
        console.print("every weight was read and is finite")


def describe(model: Checkpoint) -> dict[str, Any]:
    """What `summarise` says of it, and what `plan` would keep of it in memory for every token."""
    return summarise(model) | {"resident_bytes": Sizes(model.without_draft()).dense}


def _verify(model: Checkpoint) -> None:
    total = sum(info.total_bytes for info in model.index.values())
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("verifying", *columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("verify", total=total)
        verify(model, lambda nbytes: bar.advance(task, nbytes))


def _tensor_rows(model: Checkpoint) -> list[dict[str, Any]]:
    purpose = roles(model)
    return [
        {
            "name": name,
            "type": info.kind.name,
            "shape": list(info.shape),
            "bytes": info.total_bytes,
            "role": purpose[name].value if name in purpose else "not used",
            "file": info.file.path.name,
            "offset": info.offset,
        }
        for name, info in {**model.index, **model.unused}.items()
    ]


def _print_summary(console: Console, s: dict[str, Any]) -> None:
    c, stream = s["config"], s["streamable"]
    kinds = [layer["attention"] for layer in s["layers"]]
    schedule = ", ".join(
        f"{kinds.count(kind)} {kind}" for kind in ("sliding", "sparse", "heavy") if kind in kinds
    )
    hashed = sum(layer["hashed"] for layer in s["layers"])
    draft = "none" if s["draft"] is None else s["draft"] if s["draft_used"] else f"{s['draft']} (not used)"
    facts = {
        "model": f"{s['path']} ({s['format']}, {len(s['files'])} file{'s' * (len(s['files']) > 1)})",
        "parameters": f"{s['parameters'] / 1e9:.2f} billion in {size(s['bytes'])}",
        "layers": f"{len(kinds)}: {schedule}; {hashed} hash-routed",
        "width": f"hidden {c['hidden']}, {c['heads']} heads × {c['head_dim']}, {c['streams']} streams",
        "experts": f"{c['experts']} per layer, {c['experts_used']} used per token",
        "attention": f"window {c['window']}, index top-{c['index_topk']}, context {c['context_length']:,}",
        "vocabulary": f"{c['vocab_size']:,}, tokenizer {s['tokenizer']}",
        "draft module": draft,
        "streamable": f"{size(stream['bytes'])} in {stream['experts']:,} experts; "
        f"{size(stream['bytes_per_token'])} read per token without a cache",
        "stays resident": f"{size(s['resident_bytes'])}, which every token reads",
        "unused tensors": str(len(s["unused_tensors"])),
        "fingerprint": s["fingerprint"],
    }
    table = Table(show_header=False, box=None)
    for name, value in facts.items():
        table.add_row(name, value)
    console.print(table)
    for title, part in (("role", s["bytes_by_role"]), ("type", s["bytes_by_type"])):
        table = Table(title, "bytes", "share", box=None)
        for name, nbytes in part.items():
            table.add_row(name, size(nbytes), f"{nbytes / s['bytes']:6.1%}")
        console.print()
        console.print(table)
