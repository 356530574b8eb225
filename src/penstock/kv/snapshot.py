"""Saved sessions: a safetensors file whose metadata ties it to a model and whose checksum covers every byte.

    metadata   format "penstock-session", version, model fingerprint, kv dtype, position, floor, sha256
    tensors    tokens [n] i32, the live rows of every series (`SequenceState.tensors`), logits [vocab] if known

A file appears under its name only when it is complete and on disk.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Logits
from penstock.backend.state import DTYPES, StateLayout, StateMemory
from penstock.errors import ModelFormatError, SnapshotError
from penstock.kv.state import SequenceState, live_shapes
from penstock.machine.private import private_file
from penstock.weights.files import MappedFile
from penstock.weights.safetensors_reader import read_safetensors_with_metadata
from penstock.weights.tensor import TensorInfo

FORMAT: Final = "penstock-session"
VERSION: Final = 1
NO_CHECKSUM: Final = "0" * 64
DRAFT: Final = "mtp."  # series of a draft block, which changes no answer and so may come and go
# Names of safetensors, and how numpy sees them: bfloat16 as the 16 bits that it is.
TYPES: Final = {"F32": DTYPES["f32"], "F16": DTYPES["f16"], "BF16": DTYPES["bf16"], "I32": np.dtype(np.int32)}


@dataclass(frozen=True)
class Snapshot:
    """A sequence at rest: what it was fed, what it remembers, and the logits after its last token."""

    tokens: list[int]
    state: SequenceState
    logits: Logits | None  # [vocab]

    @property
    def nbytes(self) -> int:
        """Bytes of the file but for its header."""
        state, series = self.state, self.state.layout.series
        shapes = live_shapes(state.layout, state.position, state.floor)
        rows = sum(shapes[each.name][0] * each.width * each.itemsize for each in series)
        return rows + 4 * len(self.tokens) + (0 if self.logits is None else self.logits.nbytes)


@dataclass(frozen=True)
class Stored:
    """A tensor of the file."""

    type: str  # of TYPES
    data: NDArray[Any]


def save_snapshot(path: Path, snapshot: Snapshot, fingerprint: str) -> None:
    """Writes a snapshot; an existing file is replaced in one step, or left alone if anything fails."""
    state = snapshot.state
    rows = state.tensors()
    tensors = {"tokens": Stored("I32", np.array(snapshot.tokens, np.int32))}
    tensors |= {each.name: Stored(each.dtype.upper(), rows[each.name]) for each in state.layout.series}
    if snapshot.logits is not None:
        tensors["logits"] = Stored("F32", snapshot.logits)
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.data.size}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "model": fingerprint,
        "kv_dtype": state.layout.kv_dtype.upper(),
        "position": str(state.position),
        "floor": str(state.floor),
        "sha256": NO_CHECKSUM,
    }
    header = _header(metadata, tensors)
    digest = hashlib.sha256(header)
    payload = [np.ascontiguousarray(tensor.data).view(np.uint8).data for tensor in tensors.values()]
    for data in payload:
        digest.update(data)
    header = _header({**metadata, "sha256": digest.hexdigest()}, tensors)

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with private_file(part) as file:  # it tells what was said
            file.write(header)
            for data in payload:
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise SnapshotError(f"{path}: cannot be written: {error.strerror or error}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _header(metadata: dict[str, str], tensors: dict[str, Stored]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": tensor.type,
            "shape": list(tensor.data.shape),
            "data_offsets": [offset, offset + tensor.data.nbytes],
        }
        offset += tensor.data.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def load_snapshot(path: Path, pool: StateMemory, fingerprint: str) -> Snapshot:
    """Reads a snapshot into a new state.  Raises SnapshotError unless every byte and every shape checks out."""
    layout = pool.layout
    try:
        infos, metadata = read_safetensors_with_metadata(path)
    except ModelFormatError as error:
        raise SnapshotError(str(error)) from None
    _check_identity(path, metadata, layout, fingerprint)
    _check_sum(path, metadata)

    position = _number(path, metadata, "position", layout.context)
    floor = _number(path, metadata, "floor", position)
    tokens = _take(path, infos, "tokens", (position,), "I32")
    if bool(((tokens < 0) | (tokens >= layout.vocab_size)).any()):
        raise SnapshotError(f"{path}: token ids outside the vocabulary of {layout.vocab_size:,}")
    logits = None
    if "logits" in infos:
        logits = _take(path, infos, "logits", (layout.vocab_size,), "F32")
    shapes = live_shapes(layout, position, floor)
    live = {}
    for each in layout.series:
        if (
            each.name.startswith(DRAFT) and each.name not in infos
        ):  # saved where nobody drafted: it is found anew
            live[each.name] = np.zeros(shapes[each.name], DTYPES[each.dtype])
        else:
            live[each.name] = _take(path, infos, each.name, shapes[each.name], each.dtype.upper())
    state = SequenceState(pool)
    state.position, state.floor = position, floor
    state.restore(live)
    return Snapshot(tokens.tolist(), state, logits)


def _check_identity(path: Path, metadata: dict[str, str], layout: StateLayout, fingerprint: str) -> None:
    if metadata.get("format") != FORMAT:
        raise SnapshotError(f"{path}: not a saved session")
    if metadata.get("version") != str(VERSION):
        raise SnapshotError(f"{path}: version {metadata.get('version')!r}, expected {VERSION}")
    if metadata.get("model") != fingerprint:
        raise SnapshotError(f"{path}: saved with another model (its fingerprint differs)")
    expected = layout.kv_dtype.upper()
    if metadata.get("kv_dtype") != expected:
        raise SnapshotError(
            f"{path}: saved with kv_dtype {metadata.get('kv_dtype')}, this engine uses {expected}"
        )


def _check_sum(path: Path, metadata: dict[str, str]) -> None:
    """The checksum covers header and data; in the header its own place counts as zeros."""
    stored = metadata.get("sha256", "")
    file = MappedFile(path)
    start = 8 + int.from_bytes(file.view(0, 8).tobytes(), "little")
    header = file.view(0, start).tobytes()
    digest = hashlib.sha256(header.replace(stored.encode(), NO_CHECKSUM.encode(), 1) if stored else header)
    digest.update(file.view(start, file.size - start).data)
    if digest.hexdigest() != stored:
        raise SnapshotError(f"{path}: damaged (its checksum does not match)")


def _number(path: Path, metadata: dict[str, str], name: str, limit: int) -> int:
    text = metadata.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 16) or int(text) > limit:
        raise SnapshotError(f"{path}: {name} is {text[:20]!r}, expected a whole number up to {limit:,}")
    return int(text)


def _take(
    path: Path, infos: dict[str, TensorInfo], name: str, shape: tuple[int, ...], kind: str
) -> NDArray[Any]:
    """A tensor of the file, copied: the state outlives the file."""
    if 0 in shape:
        return np.empty(shape, TYPES[kind])
    info = infos.get(name)
    if info is None or info.shape != shape or info.kind.name != kind:
        found = "nothing" if info is None else f"{info.kind.name} {list(info.shape)}"
        raise SnapshotError(f"{path}: {name}: found {found}, expected {kind} {list(shape)}")
    return info.file.view(info.offset, info.nbytes).copy().view(TYPES[kind]).reshape(shape)
