"""A model without its weights: headers before holes.  That is enough to plan with, and takes no room on the disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import HubError, ModelFormatError
from penstock.hub.catalog import Known
from penstock.hub.choices import Choice
from penstock.hub.listing import Listing, RemoteFile
from penstock.hub.transfer import Source, read_in_order
from penstock.weights.config_gguf import ARCHITECTURE, config_to_gguf
from penstock.weights.gguf_reader import read_gguf
from penstock.weights.gguf_writer import PlannedTensor, write_outline
from penstock.weights.layout import Role
from penstock.weights.synth import plan_synth, stored_type

# Bytes of a header to begin with: a published one with its vocabulary has 5.3 MB, others a few hundred KB.
FIRST: Final = 8 << 20
OTHERS: Final = 1 << 18
MOST: Final = 128 << 20


def outline_known(known: Known, folder: Path) -> Path | None:
    """A model of the catalog.  None where it is not known how its weights are stored."""
    if not known.experts:
        return None
    plan = plan_synth(width="flash", mix=known.rest)
    tensors = []
    for tensor in plan.tensors:
        kind, name = tensor.kind, tensor.plan.name
        if tensor.plan.role is Role.ROUTED:  # blk.7.ffn_up_exps.weight
            kind = stored_type(tensor.plan, known.mix_of(int(name.split(".")[1])))
        tensors.append(PlannedTensor(name, kind, tensor.plan.shape, _nothing))
    path = folder / f"{known.name}.gguf"
    metadata = {"general.architecture": ARCHITECTURE} | config_to_gguf(
        plan.config
    )  # no vocabulary: nobody reads
    write_outline(path, metadata, tensors)
    return path


def outline_remote(listing: Listing, model: Choice[RemoteFile], folder: Path) -> Path:
    """A model on the hub, of which only the headers are fetched."""
    for file in model.files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        _outline_file(Source(listing, file), path, FIRST if file.path == model.path else OTHERS)
    return folder / model.path


def _outline_file(source: Source, path: Path, wanted: int) -> None:
    size = source.file.size
    if path.suffix not in (".gguf", ".safetensors"):
        wanted = size
    with path.open("wb") as file:
        file.truncate(size)
        while True:
            for chunk in read_in_order(source, file.tell(), min(wanted, size)):
                file.write(chunk)
            file.flush()
            if wanted >= size or _has_header(path, file.tell()):
                return
            if wanted >= MOST:
                raise HubError(f"{source.repo}: {source.file.path}: no header within {MOST:,} bytes")
            wanted *= 2


def _has_header(path: Path, here: int) -> bool:
    """Whether all of a file's header is in the first `here` bytes; behind them is a hole."""
    if path.suffix == ".safetensors":
        with path.open("rb") as file:
            return 8 + int.from_bytes(file.read(8), "little") <= here
    try:
        tensors = read_gguf(path).tensors.values()
    except ModelFormatError:
        return False  # zeros in place of the rest; a damaged header is found out when it is opened
    return min((info.offset for info in tensors), default=0) <= here


def _nothing() -> Iterator[np.ndarray]:
    raise AssertionError("an outline has no weights")
