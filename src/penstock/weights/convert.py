"""A model in other types: a checkpoint folder or a GGUF file becomes one GGUF that Penstock and llama.cpp both load.

    report = convert(Path("DeepSeek-V4-Flash"), Path("flash-q2.gguf"), "q2", imatrix=Path("flash.imatrix.gguf"))

Everything that can be known beforehand is checked before the first byte is written.  Weights then stream through
in slabs of rows, so that memory stays at tens of megabytes whatever the size of the model.  A run that was killed is
gone on with by the next one for the same job; the bytes do not depend on it, nor on the number of threads.

llama.cpp refuses tensors it does not expect, and one file has room for one output mixing: the draft (MTP) block of a
checkpoint folder gets a file of its own, in llama.cpp's layout of one block past the trunk.  A block that lies in the
GGUF file that is converted stays in the new one.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import penstock
from penstock.errors import OptionError
from penstock.machine.cpu import read_cpu
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.convert_plan import (
    PlannedFile,
    Recipe,
    draft_file,
    own_mixing,
    trunk_file,
    whole_file,
)
from penstock.weights.convert_report import ConvertReport, FileReport
from penstock.weights.gguf_writer import GGUFPart
from penstock.weights.imatrix import Imatrix, read_imatrix
from penstock.weights.mixes import mix_by_name
from penstock.weights.opening import open_checkpoint

Progress = Callable[[int, int, str], None]

HEADER_ROOM: Final = 16 << 20  # bytes; vocabulary, merges and directory of a real model take about 8 MB


def convert(
    source: Path,
    destination: Path,
    mix: str,
    *,
    imatrix: Path | None = None,
    mtp: Path | None = None,
    mtp_inside: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> ConvertReport:
    """Writes the model `source` to the GGUF file `destination`, in the types of `mix` (see mixes.py), and its draft
    block to `mtp`, or into the same file where `mtp_inside` is set (possible only if the block shares the trunk's
    output mixing, as one that comes out of a GGUF file does).

    `progress(done, total, tensor)` is called with bytes.  When this fails nothing new is left behind; when it is
    interrupted, what the next call for the same goes on with.
    """
    chosen = mix_by_name(mix)
    checkpoint = open_checkpoint(source)
    weights = None if imatrix is None else read_imatrix(imatrix)
    recipe = Recipe(chosen, weights, threads or read_cpu().usable)
    inside = mtp_inside or (mtp is None and source.is_file() and _keeps_draft(checkpoint))
    files = [(whole_file if inside else trunk_file)(checkpoint, recipe, destination)]
    if mtp is not None:
        files.insert(0, draft_file(checkpoint, recipe, mtp))  # the small one first: it fails sooner
    _check_destinations(files, checkpoint, overwrite)
    job = _job(checkpoint, imatrix, mix)
    parts = [GGUFPart(file.path, file.metadata, [o.planned for o in file.outputs], job) for file in files]
    kept = sum(part.kept() for part in parts)
    _check_space(files, parts)
    _write(parts, sum(file.nbytes for file in files), progress or (lambda *_: None))
    reports = [file.report() for file in files]
    return ConvertReport(
        mix,
        main=reports[-1],
        mtp=reports[0] if mtp is not None else None,
        draft=None if inside else checkpoint.draft,
        left_out=tuple(name for name in checkpoint.unused if not name.startswith("mtp.")),
        imatrix=weights is not None,
        kept_bytes=kept,
    )


def _keeps_draft(checkpoint: Checkpoint) -> bool:
    return checkpoint.has_mtp and own_mixing(checkpoint) is None


def _job(checkpoint: Checkpoint, imatrix: Path | None, mix: str) -> str:
    """What the bytes of the result follow from: the model as it lies there, the importance matrix, the mix and we."""
    stamps = []
    for file in sorted(checkpoint.files, key=lambda file: file.path):
        found = os.stat(file.path)
        stamps.append(f"{file.path.resolve()} {found.st_size} {found.st_mtime_ns}")
    matrix = "" if imatrix is None else hashlib.sha256(imatrix.read_bytes()).hexdigest()
    return "\n".join([penstock.__version__, mix, matrix, checkpoint.fingerprint(), *stamps])


# ── checks before the first byte ──────────────────────────────────────────────────────────────────────────


def _check_destinations(files: Sequence[PlannedFile], checkpoint: Checkpoint, overwrite: bool) -> None:
    if len({file.path.resolve() for file in files}) != len(files):
        raise OptionError(f"{files[0].path}: the model and its MTP block need two different files")
    tensors = (checkpoint.index | checkpoint.unused).values()
    inputs = {path.resolve() for path in {info.file.path for info in tensors}}
    for path in (file.path for file in files):
        if not path.parent.is_dir():
            raise OptionError(f"{path}: there is no folder {path.parent} to write it to")
        if path.is_dir():
            raise OptionError(f"{path}: expected the name of a file to write, found a folder")
        if path.resolve() in inputs:
            raise OptionError(f"{path}: belongs to the model that is being converted")
        if path.exists() and not overwrite:
            raise OptionError(f"{path}: exists already; --force (overwrite=True) replaces it")


def _check_space(files: Sequence[PlannedFile], parts: Sequence[GGUFPart]) -> None:
    """Files on one disk share what is free there; what an earlier run has left is there already."""
    needed: Counter[int] = Counter()
    for file, part in zip(files, parts, strict=True):
        disk = os.stat(file.path.parent).st_dev
        needed[disk] += file.nbytes + HEADER_ROOM - part.kept()
        free = shutil.disk_usage(file.path.parent).free
        if needed[disk] > free:
            raise OptionError(
                f"{file.path}: {needed[disk]:,} bytes are needed, {free:,} are free in {file.path.parent}"
            )


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────


def _write(parts: Sequence[GGUFPart], total: int, progress: Progress) -> None:
    done = 0

    def advance(count: int, tensor: str) -> None:
        nonlocal done
        done += count
        progress(done, total, tensor)

    try:
        for part in parts:
            part.write(advance)
    except Exception as error:
        if not isinstance(error, OptionError):  # a draft block without its model is of no use
            for part in parts:
                part.discard()
        raise
    for part in parts:
        part.finish()


__all__ = ["ConvertReport", "FileReport", "Imatrix", "Progress", "convert"]
