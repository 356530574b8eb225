"""What `penstock pack` does: a second file from which each expert is one read, where the disk makes that worth it."""

import json
import time
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

import penstock
from penstock.errors import OptionError
from penstock.hub.find import find_model
from penstock.sizes import size
from penstock.storage.pack import pack_path
from penstock.storage.pack_speed import Speeds, measure, reads_per_expert
from penstock.storage.pack_writer import check_destination, experts_bytes, write_pack
from penstock.storage.source import ExpertSource
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint

WORTH: Final = 0.03  # gain below which a copy of the experts is a waste of disk


def pack(model: Path, output: Path | None, measure_only: bool, force: bool, json_output: bool) -> None:
    checkpoint = open_checkpoint(find_model(model))
    source = ExpertSource(checkpoint)
    destination = output or pack_path(checkpoint.path)
    if not measure_only:
        check_outside_package(destination)
        check_destination(source, destination, overwrite=force)
    reads, speeds = reads_per_expert(source), None
    if reads > 1:
        with Console(stderr=True).status("measuring the disk …"):  # shown only on a terminal
            speeds = measure(source)
    worth = speeds is not None and speeds.gain >= WORTH
    report: dict[str, Any] = {
        "model": str(checkpoint.path),
        "reads_per_expert": reads,
        "bytes_per_second": speeds and speeds.apart,
        "bytes_per_second_in_one_read": speeds and speeds.together,
        "gain": speeds.gain if speeds else 0.0,
        "worth_it": worth,
        "pack_bytes": experts_bytes(source),
        "written": None,
    }
    console = Console(highlight=False, soft_wrap=True, quiet=json_output)
    console.print(_comparison(reads, speeds), markup=False)
    if not measure_only and (worth or force):
        begin = time.perf_counter()
        report["pack_bytes"] = _write(checkpoint, destination, report["pack_bytes"], force)
        report |= {"written": str(destination), "seconds": time.perf_counter() - begin}
    console.print(_outcome(report, measure_only), markup=False)
    if json_output:
        print(json.dumps(report))


def check_outside_package(path: Path) -> None:
    """What is installed stays as it was installed."""
    package = Path(penstock.__file__).parent.resolve()
    if path.resolve().is_relative_to(package):
        raise OptionError(
            f"{path}: lies in Penstock's own folder, as the pocket model does; -o names another place"
        )


def _write(checkpoint: Checkpoint, destination: Path, total: int, force: bool) -> int:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        return write_pack(checkpoint, destination, overwrite=force, progress=lambda n: bar.advance(task, n))


def _comparison(reads: float, speeds: Speeds | None) -> str:
    if speeds is None:
        return "every expert lies in one piece already"
    return (
        f"experts come at {speeds.apart / 1e9:.2f} GB/s in {reads:.3g} reads each, "
        f"at {speeds.together / 1e9:.2f} GB/s in one; round by round that is {speeds.gain:+.1%}"
    )


def _outcome(report: dict[str, Any], measure_only: bool) -> str:
    amount = size(report["pack_bytes"])
    if report["written"]:
        return f"{report['written']}: {amount} written in {report['seconds']:.1f} s"
    if report["worth_it"]:
        return f"a pack is worth its {amount}: the same command without --measure writes it"
    advice = "" if measure_only else "; none was written (--force writes it all the same)"
    return f"a pack of {amount} would gain less than {WORTH:.0%}{advice}"
