"""A checkpoint folder as one GGUF file that Penstock and llama.cpp both load.

    report = convert(Path("DeepSeek-V4-Flash"), Path("flash-mxfp4.gguf"), "mxfp4")

Everything that can be known beforehand is checked before the first byte is written.  Weights then stream through
in slabs of rows, so that memory stays at tens of megabytes whatever the size of the checkpoint.

The draft (MTP) block never goes into the main file, because llama.cpp refuses tensors it does not expect; it
gets a file of its own, in llama.cpp's layout of one block past the trunk.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import ModelFormatError, OptionError
from penstock.weights import names
from penstock.weights.checkpoint import Checkpoint, planned_tensors
from penstock.weights.config_gguf import ARCHITECTURE, config_to_gguf
from penstock.weights.convert_metadata import file_metadata
from penstock.weights.convert_report import ConvertReport, FileReport
from penstock.weights.gguf_writer import Chunks, PlannedTensor, write_gguf
from penstock.weights.layout import Role, TensorPlan
from penstock.weights.mixes import Mix, mix_by_name
from penstock.weights.opening import open_checkpoint
from penstock.weights.recode import is_exact, recode, recode_side_by_side, recode_table
from penstock.weights.tensor import TensorInfo
from penstock.weights.types import BF16, F16, WeightType

Progress = Callable[[int, int, str], None]

HEADER_ROOM: Final = 16 << 20  # bytes; vocabulary, merges and directory of a real model take about 8 MB
_STACK = re.compile(r"(.+)\.ffn_(gate|up|down)_exps\.weight")
_NEXTN: Final = {ours: theirs for theirs, ours in names.NEXTN.items()}


def convert(
    source: Path,
    destination: Path,
    mix: str,
    *,
    mtp: Path | None = None,
    mtp_inside: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ConvertReport:
    """Writes the checkpoint folder `source` to the GGUF file `destination`, and its draft block to `mtp`, or into
    the same file where `mtp_inside` is set (possible only if the block shares the trunk's output mixing).

    `progress(done, total, tensor)` is called with bytes.  On failure nothing new is left behind.
    """
    chosen = mix_by_name(mix)
    if source.is_file():
        raise OptionError(f"{source}: convert takes a folder with safetensors and config.json, not a file")
    checkpoint = open_checkpoint(source)
    if mtp_inside:
        files = [_whole_file(checkpoint, chosen, destination)]
    else:
        files = [_trunk_file(checkpoint, chosen, destination)]
    if mtp is not None:
        files.insert(0, _draft_file(checkpoint, chosen, mtp))  # the small one first: it fails sooner
    _check_destinations(files, checkpoint, overwrite)
    _check_space(files)
    _write(files, progress or (lambda *_: None))
    reports = [file.report() for file in files]
    left_out = tuple(name for name in checkpoint.unused if not name.startswith("mtp."))
    return ConvertReport(
        mix, reports[-1], reports[0] if mtp is not None else None, checkpoint.draft, left_out
    )


# ── what is written ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Output:
    """One tensor of a file to be: its type and shape, the tensors it is made of, and how."""

    name: str
    kind: WeightType
    shape: tuple[int, ...]
    sources: list[TensorInfo]
    chunks: Callable[[], Chunks]
    fallback: bool

    @property
    def nbytes(self) -> int:
        return self.kind.nbytes(self.shape)

    @property
    def exact(self) -> bool:
        return all(is_exact(info.kind, self.kind) for info in self.sources)


@dataclass(frozen=True)
class _File:
    path: Path
    metadata: dict[str, Any]
    outputs: list[_Output]

    @property
    def nbytes(self) -> int:
        return sum(output.nbytes for output in self.outputs)

    def report(self) -> FileReport:
        sizes: Counter[str] = Counter()
        for output in self.outputs:
            sizes[output.kind.name] += output.nbytes
        kept = sum(output.exact for output in self.outputs)
        fallbacks = {output.name: output.kind.name for output in self.outputs if output.fallback}
        return FileReport(
            self.path, len(self.outputs), kept, len(self.outputs) - kept, dict(sizes), fallbacks
        )


def _trunk_file(checkpoint: Checkpoint, mix: Mix, path: Path) -> _File:
    plans = [plan for plan in planned_tensors(checkpoint) if not plan.name.startswith("mtp.")]
    metadata = _metadata(checkpoint, mix, checkpoint.config.layer_count)
    return _File(path, metadata, [_output(checkpoint, mix, plan, plan.name) for plan in plans])


def _whole_file(checkpoint: Checkpoint, mix: Mix, path: Path) -> _File:
    """Trunk and MTP block in one file.  Such a file has one output_hc_*, so both must use the same."""
    draft = _draft_file(checkpoint, mix, path)
    for leaf in ("fn", "base", "scale"):
        own, trunk = (
            checkpoint.weight(f"{prefix}_{leaf}.weight").decode() for prefix in ("mtp.0.hc_head", "output_hc")
        )
        if not np.array_equal(own, trunk):
            raise ModelFormatError(
                f"{checkpoint.path}: the MTP block has output mixing of its own (mtp.0.hc_head_{leaf}), for which "
                "one file has no place; write it to a separate file with --mtp"
            )
    extra = [output for output in draft.outputs if output.name.startswith("blk.")]
    return _File(path, draft.metadata, [*_trunk_file(checkpoint, mix, path).outputs, *extra])


def _draft_file(checkpoint: Checkpoint, mix: Mix, path: Path) -> _File:
    """The MTP block as block number `layers`, with what it shares with the trunk; the root's output_hc_* is
    the block's own, because that is the only head such a file can hold."""
    if not checkpoint.has_mtp:
        found = f"only a {checkpoint.draft} module" if checkpoint.draft else "none"
        raise ModelFormatError(f"{checkpoint.path}: an MTP block was asked for (--mtp), found {found}")
    block = checkpoint.config.layer_count
    metadata = _metadata(checkpoint, mix, blocks=block + 1)
    metadata[f"{ARCHITECTURE}.nextn_predict_layers"] = 1
    outputs = []
    for plan in planned_tensors(checkpoint):
        if plan.name in ("token_embd.weight", "output_norm.weight", "output.weight"):
            outputs.append(_output(checkpoint, mix, plan, plan.name))
        elif plan.name == "mtp.0.e_proj.weight":
            outputs.append(_joined_projection(checkpoint, mix, plan, f"blk.{block}.nextn.eh_proj.weight"))
        elif plan.name.startswith("mtp.0.") and plan.name != "mtp.0.h_proj.weight":
            outputs.append(_output(checkpoint, mix, plan, _draft_name(plan.name, block)))
    return _File(path, metadata, outputs)


def _metadata(checkpoint: Checkpoint, mix: Mix, blocks: int) -> dict[str, Any]:
    config = checkpoint.config
    return file_metadata(checkpoint.path, config, mix.file_type) | config_to_gguf(config, blocks=blocks)


def _draft_name(name: str, block: int) -> str:
    leaf = name.removeprefix("mtp.0.")
    if leaf.startswith("hc_head_"):
        return leaf.replace("hc_head_", "output_hc_")
    return f"blk.{block}.{_NEXTN.get(leaf, leaf)}"


def _output(checkpoint: Checkpoint, mix: Mix, plan: TensorPlan, name: str) -> _Output:
    sources = _sources(checkpoint, plan)
    kind, fallback = _fitting(mix.target(plan), plan.shape, sources)
    chunks: Callable[[], Chunks]
    if plan.role is Role.HASH_TABLE:
        chunks = partial(recode_table, sources[0], checkpoint.config.experts)
    else:
        chunks = partial(_one_after_another, sources, kind)
    return _Output(name, kind, plan.shape, sources, chunks, fallback)


def _joined_projection(checkpoint: Checkpoint, mix: Mix, plan: TensorPlan, name: str) -> _Output:
    """One matrix [hidden, 2 × hidden] for the embedding (first columns) and the trunk's streams."""
    embedding, streams = checkpoint.index["mtp.0.e_proj.weight"], checkpoint.index["mtp.0.h_proj.weight"]
    shape = (plan.shape[0], 2 * plan.shape[1])
    kind, fallback = _fitting(mix.target(plan), shape, [embedding, streams])
    chunks = partial(recode_side_by_side, embedding, streams, kind)
    return _Output(name, kind, shape, [embedding, streams], chunks, fallback)


def _sources(checkpoint: Checkpoint, plan: TensorPlan) -> list[TensorInfo]:
    """The tensors whose rows, one after another, are the planned tensor: itself, or one per expert."""
    if plan.role is not Role.ROUTED:
        return [checkpoint.index[plan.name]]
    match = _STACK.fullmatch(plan.name)
    assert match is not None
    return [checkpoint.expert(match[1], number, match[2]) for number in range(plan.shape[0])]


def _one_after_another(sources: Sequence[TensorInfo], kind: WeightType) -> Chunks:
    for info in sources:
        yield from recode(info, kind)


def _fitting(
    wanted: WeightType, shape: Sequence[int], sources: Iterable[TensorInfo]
) -> tuple[WeightType, bool]:
    """(type, whether it is a fallback): half precision where rows are not whole blocks of the wanted type."""
    if shape[-1] % wanted.block == 0:
        return wanted, False
    return (BF16 if all(info.kind is BF16 for info in sources) else F16), True


# ── checks before the first byte ──────────────────────────────────────────────────────────────────────────


def _check_destinations(files: Sequence[_File], checkpoint: Checkpoint, overwrite: bool) -> None:
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
            raise OptionError(f"{path}: belongs to the checkpoint that is being converted")
        if path.exists() and not overwrite:
            raise OptionError(f"{path}: exists already; --force (overwrite=True) replaces it")


def _check_space(files: Sequence[_File]) -> None:
    """Files on one disk share what is free there."""
    needed: Counter[int] = Counter()
    for file in files:
        disk = os.stat(file.path.parent).st_dev
        needed[disk] += file.nbytes + HEADER_ROOM
        free = shutil.disk_usage(file.path.parent).free
        if needed[disk] > free:
            raise OptionError(
                f"{file.path}: {needed[disk]:,} bytes are needed, {free:,} are free in {file.path.parent}"
            )


# ── writing ───────────────────────────────────────────────────────────────────────────────────────────────


def _write(files: Sequence[_File], progress: Progress) -> None:
    counter = _Counter(sum(file.nbytes for file in files), progress)
    finished: list[Path] = []
    try:
        for file in files:
            write_gguf(file.path, file.metadata, map(counter.watch, file.outputs), counter.advance)
            finished.append(file.path)
    except BaseException:
        for path in finished:  # a draft block without its model is of no use
            path.unlink(missing_ok=True)
        raise


class _Counter:
    """Turns "so many bytes more" into "so many of so many, at this tensor"."""

    def __init__(self, total: int, progress: Progress):
        self.total, self.progress = total, progress
        self.done, self.tensor = 0, ""

    def watch(self, output: _Output) -> PlannedTensor:
        def chunks() -> Iterator[Any]:
            self.tensor = output.name
            yield from output.chunks()

        return PlannedTensor(output.name, output.kind, output.shape, chunks)

    def advance(self, count: int) -> None:
        self.done += count
        self.progress(self.done, self.total, self.tensor)


__all__ = ["ConvertReport", "FileReport", "Progress", "convert"]
