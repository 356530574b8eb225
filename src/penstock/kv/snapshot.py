"""Saved sessions: a safetensors file whose metadata ties it to a model and whose checksum covers every byte.

    metadata   format "penstock-session", version, model fingerprint, kv dtype, position, floor, sha256
    tensors    tokens [n] i32, the live rows of every series (`SequenceMemory.tensors`), logits [vocab] if known

A file appears under its name only when it is complete and on disk.
"""

import hashlib
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from penstock.errors import ModelFormatError, SnapshotError
from penstock.kv.state import SequenceMemory, StateLayout
from penstock.weights.files import MappedFile
from penstock.weights.safetensors_reader import read_safetensors_with_metadata
from penstock.weights.tensor import TensorInfo

FORMAT: Final = "penstock-session"
VERSION: Final = 1
NO_CHECKSUM: Final = "0" * 64
DTYPES: Final[dict[torch.dtype, str]] = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
}


@dataclass(frozen=True)
class Snapshot:
    """A sequence at rest: what it was fed, what it remembers, and the logits after its last token."""

    tokens: list[int]
    state: SequenceMemory
    logits: Tensor | None  # [vocab]

    @property
    def nbytes(self) -> int:
        """Bytes of the file but for its header."""
        shapes, layout = self.state.expected_shapes(), self.state.layout
        series = sum(math.prod(shape) * _dtype(name, layout).itemsize for name, shape in shapes.items())
        return series + 4 * len(self.tokens) + (0 if self.logits is None else self.logits.nbytes)


def _dtype(series: str, layout: StateLayout) -> torch.dtype:
    """What a series is saved as."""
    return torch.float32 if series.endswith((".frontier", ".streams")) else layout.kv_dtype


def save_snapshot(path: Path, snapshot: Snapshot, fingerprint: str) -> None:
    """Writes a snapshot; an existing file is replaced in one step, or left alone if anything fails."""
    tensors: dict[str, Tensor] = {"tokens": torch.tensor(snapshot.tokens, dtype=torch.int32)}
    tensors |= snapshot.state.tensors()
    if snapshot.logits is not None:
        tensors["logits"] = snapshot.logits
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor.numel()}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "model": fingerprint,
        "kv_dtype": DTYPES[snapshot.state.layout.kv_dtype],
        "position": str(snapshot.state.position),
        "floor": str(snapshot.state.floor),
        "sha256": NO_CHECKSUM,
    }
    header = _header(metadata, tensors)
    digest = hashlib.sha256(header)
    payload = [tensor.view(torch.uint8).numpy().data for tensor in tensors.values()]
    for data in payload:
        digest.update(data)
    header = _header({**metadata, "sha256": digest.hexdigest()}, tensors)

    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
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


def _header(metadata: dict[str, str], tensors: dict[str, Tensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def load_snapshot(path: Path, layout: StateLayout, fingerprint: str) -> Snapshot:
    """Reads a snapshot into a new state.  Raises SnapshotError unless every byte and every shape checks out."""
    try:
        infos, metadata = read_safetensors_with_metadata(path)
    except ModelFormatError as error:
        raise SnapshotError(str(error)) from None
    _check_identity(path, metadata, layout, fingerprint)
    _check_sum(path, metadata)

    state = SequenceMemory(layout)
    state.position = _number(path, metadata, "position", layout.context)
    state.floor = _number(path, metadata, "floor", state.position)
    tensors = {name: _tensor(info) for name, info in infos.items()}
    tokens = _take(path, tensors, "tokens", (state.position,), torch.int32)
    if bool(((tokens < 0) | (tokens >= layout.config.vocab_size)).any()):
        raise SnapshotError(f"{path}: token ids outside the vocabulary of {layout.config.vocab_size:,}")
    logits = None
    if "logits" in tensors:
        logits = _take(path, tensors, "logits", (layout.config.vocab_size,), torch.float32)
    live = {}
    for name, shape in state.expected_shapes().items():
        live[name] = _take(path, tensors, name, shape, _dtype(name, layout))
    state.restore(live)
    return Snapshot(tokens.tolist(), state, logits)


def _check_identity(path: Path, metadata: dict[str, str], layout: StateLayout, fingerprint: str) -> None:
    if metadata.get("format") != FORMAT:
        raise SnapshotError(f"{path}: not a saved session")
    if metadata.get("version") != str(VERSION):
        raise SnapshotError(f"{path}: version {metadata.get('version')!r}, expected {VERSION}")
    if metadata.get("model") != fingerprint:
        raise SnapshotError(f"{path}: saved with another model (its fingerprint differs)")
    expected = DTYPES[layout.kv_dtype]
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


def _tensor(info: TensorInfo) -> Tensor:
    dtypes = {name: dtype for dtype, name in DTYPES.items()}
    raw = info.file.view(info.offset, info.nbytes).copy()  # copied: the state outlives the file
    if info.kind.name not in dtypes:
        raise SnapshotError(f"{info.file.path}: tensor {info.name} has type {info.kind.name}")
    return torch.from_numpy(np.ascontiguousarray(raw)).view(dtypes[info.kind.name]).view(info.shape)


def _take(
    path: Path, tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    tensor = tensors.get(name)
    if tensor is None or tuple(tensor.shape) != shape or tensor.dtype != dtype:
        found = "nothing" if tensor is None else f"{DTYPES[tensor.dtype]} {list(tensor.shape)}"
        raise SnapshotError(f"{path}: {name}: found {found}, expected {DTYPES[dtype]} {list(shape)}")
    return tensor
