"""Writes packs: experts are read from the model a few at a time, and written one after another."""

import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import ModelFormatError, OptionError
from penstock.machine.pages import reserve
from penstock.storage.bundle import Bytes
from penstock.storage.pack import LONGEST_HEADER, Layout, header_of, layouts_of, sealed
from penstock.storage.reader import Reader
from penstock.storage.source import ExpertSource
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.direct_file import DirectFile
from penstock.weights.tensor import Weight

BUFFERS: Final = 4  # experts that are read while another is written


def experts_bytes(source: ExpertSource) -> int:
    """Bytes of a pack without its header."""
    return source.experts * sum(layout.nbytes for layout in layouts_of(source))


def check_destination(source: ExpertSource, path: Path, overwrite: bool) -> None:
    """Raises OptionError if the pack cannot be written there."""
    if path.is_dir():
        raise OptionError(f"{path}: expected the name of a file to write, found a folder")
    if not path.parent.is_dir():
        raise OptionError(f"{path}: there is no folder {path.parent} to write it to")
    if path.resolve() in {file.path.resolve() for file in source.checkpoint.files}:
        raise OptionError(f"{path}: belongs to the model")
    if path.exists() and not overwrite:
        raise OptionError(f"{path}: exists already; --force (overwrite=True) replaces it")
    # A pack that is being replaced stays until the new one is complete, so its space does not count.
    needed, free = experts_bytes(source) + LONGEST_HEADER, shutil.disk_usage(path.parent).free
    if needed > free:
        raise OptionError(f"{path}: {needed:,} bytes are needed, {free:,} are free in {path.parent}")


def write_pack(
    checkpoint: Checkpoint,
    path: Path,
    *,
    overwrite: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Writes a pack and returns its size.  `progress` is called with the number of bytes just written.

    The file appears under its name only when it is complete; until then it is `NAME.part`, removed on failure.
    """
    source = ExpertSource(checkpoint)
    check_destination(source, path, overwrite)
    layouts = layouts_of(source)
    buffers = [np.frombuffer(reserve(max(source.slot_bytes), large=True), np.uint8) for _ in range(BUFFERS)]
    part = path.with_name(path.name + ".part")
    try:
        with DirectFile(part) as sink, closing(Reader()) as reader:
            sink.write(sealed(header_of(checkpoint, layouts)))
            for layout, weights in _in_order(source, layouts, reader, buffers):
                _write_expert(sink, layout, weights)
                progress(layout.nbytes)
        os.replace(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OptionError(f"{path}: cannot be written: {error.strerror or error}") from error
        raise
    return sink.size


def _in_order(
    source: ExpertSource, layouts: Sequence[Layout], reader: Reader, buffers: Sequence[Bytes]
) -> Iterator[tuple[Layout, list[Weight]]]:
    """All experts by key.  One is good until the next is asked for; its buffer is used again then."""
    waiting: deque[tuple[int, int]] = deque()  # key and job

    def arrived() -> tuple[Layout, list[Weight]]:
        key, job = waiting.popleft()
        reader.wait(job)
        return layouts[key // source.experts], source.weights(key, buffers[key % len(buffers)])

    for key in range(len(layouts) * source.experts):
        bundle, layout = source.bundle(key), layouts[key // source.experts]
        if Layout.of(layout.block, bundle.infos).described() != layout.described():
            raise ModelFormatError(
                f"{source.checkpoint.path}: {source.name(key)}: stored in other types than the first of its block, "
                "for which a pack has no place"
            )
        if len(waiting) == len(buffers):
            yield arrived()
        memory = buffers[key % len(buffers)].ctypes.data
        waiting.append((key, reader.submit(bundle.pieces(reader, memory))))
    while waiting:
        yield arrived()


def _write_expert(sink: DirectFile, layout: Layout, weights: list[Weight]) -> None:
    tensors = [data for weight in weights for data in (weight.raw, weight.scale) if data is not None]
    at = 0
    for data, offset in zip(tensors, layout.offsets.values(), strict=True):
        sink.write(bytes(offset - at))
        sink.write(data)
        at = offset + data.nbytes
    sink.write(bytes(layout.nbytes - at))
