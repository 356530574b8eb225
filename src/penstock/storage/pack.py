"""A second file in which every routed expert lies in one piece, so that it takes one read instead of three.

    48 bytes   magic, version, length of the header, SHA-256 of the header
    header     JSON: the model's fingerprint, the number of experts, and for each block the bytes of an expert and
               where in them each of its tensors begins; then zeros up to a whole block of the file
    experts    in order of key, each from a whole block of the file on: gate, up and down, scales behind their matrix

All other weights stay in the model's own file, and so does the draft block, which fingerprints do not cover.
`pack_writer` writes packs.
"""

import hashlib
import json
import struct
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from penstock.errors import ModelFormatError
from penstock.storage.reader import BLOCK
from penstock.storage.source import PARTS, ExpertSource
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.files import MappedFile
from penstock.weights.safetensors_reader import parse_json
from penstock.weights.tensor import TensorInfo

MAGIC: Final = b"PENSPACK"
VERSION: Final = 1
FIXED: Final = struct.Struct("<8sII32s")
LONGEST_HEADER: Final = 16 << 20
ALIGNMENT: Final = 64  # of tensors within an expert: a cache line
SAMPLE: Final = 64  # bytes of a tensor that are compared with the model's


def pack_path(model: Path) -> Path:
    """Where a model's pack is looked for: beside it.

    >>> pack_path(Path("model.gguf")).name
    'model.gguf.pack'
    """
    named = model if model.name not in ("", "..") else model.resolve()
    return named.with_name(named.name + ".pack")


def find_source(checkpoint: Checkpoint, pack: Path | str | None) -> ExpertSource:
    """Experts from the pack that is named; with "auto" from the one beside the model, if there is one and it fits."""
    if pack is None:
        return ExpertSource(checkpoint)
    if pack != "auto":
        return PackedSource(checkpoint, Path(pack))
    beside = pack_path(checkpoint.path)
    if beside.is_file():
        try:
            return PackedSource(checkpoint, beside)
        except ModelFormatError as error:
            warnings.warn(f"{error}.  Experts are read from the model itself.", stacklevel=2)
    return ExpertSource(checkpoint)


# ── layout ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Layout:
    """What is where in each expert of a block."""

    block: str
    tensors: dict[str, TensorInfo]  # of the first expert: "gate", "gate.scale" if it has scales, "up", …
    offsets: dict[str, int]  # where each one begins
    nbytes: int  # of an expert, in whole blocks of the file

    @staticmethod
    def of(block: str, infos: Sequence[TensorInfo]) -> "Layout":
        tensors, offsets, end = named_tensors(infos), {}, 0
        for name, tensor in tensors.items():
            offsets[name] = _up(end, ALIGNMENT)
            end = offsets[name] + tensor.nbytes
        return Layout(block, tensors, offsets, _up(end, BLOCK))

    def described(self) -> dict[str, Any]:
        """As the header has it."""
        tensors = {
            name: {"type": tensor.kind.name, "shape": list(tensor.shape), "offset": self.offsets[name]}
            for name, tensor in self.tensors.items()
        }
        return {"name": self.block, "expert_bytes": self.nbytes, "tensors": tensors}


def layouts_of(source: ExpertSource) -> list[Layout]:
    """One for each block but the draft's."""
    blocks = source.blocks[: len(source.checkpoint.layers)]
    return [Layout.of(block, source.infos(source.key(block, 0))) for block in blocks]


def named_tensors(infos: Sequence[TensorInfo]) -> dict[str, TensorInfo]:
    """An expert's tensors in the order in which a pack has them."""
    found = {}
    for part, info in zip(PARTS, infos, strict=True):
        found[part] = info
        if info.scale is not None:
            found[f"{part}.scale"] = info.scale
    return found


def header_of(checkpoint: Checkpoint, layouts: Iterable[Layout]) -> dict[str, Any]:
    return {
        "model": checkpoint.fingerprint(),
        "experts": checkpoint.config.experts,
        "blocks": [layout.described() for layout in layouts],
    }


def sealed(header: dict[str, Any]) -> bytes:
    """What a pack begins with, up to its first expert."""
    text = json.dumps(header, separators=(",", ":")).encode()
    start = FIXED.pack(MAGIC, VERSION, len(text), hashlib.sha256(text).digest()) + text
    return start + bytes(_up(len(start), BLOCK) - len(start))


def _up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────


class PackedSource(ExpertSource):
    """The experts of a checkpoint, read from a pack.  Raises ModelFormatError unless the pack was made from it."""

    def __init__(self, checkpoint: Checkpoint, path: Path):
        super().__init__(checkpoint)
        self.path = path
        self._file = MappedFile(path)
        self._file.expect_little()
        self._starts: list[int] = []  # of blocks
        self._layouts = layouts_of(self)
        found, at = read_header(self._file)
        _compare(path, found, header_of(checkpoint, self._layouts))
        for layout in self._layouts:
            self._starts.append(at)
            at += self.experts * layout.nbytes
        if self._file.size != at:
            raise ModelFormatError(
                f"{path}: {self._file.size:,} bytes, expected {at:,}: write the pack again"
            )
        self._compare_samples()

    def infos(self, key: int) -> list[TensorInfo]:
        own = super().infos(key)
        block, expert = divmod(key, self.experts)
        if block >= len(self._starts):  # the draft block
            return own
        layout = self._layouts[block]
        at = self._starts[block] + expert * layout.nbytes

        def moved(info: TensorInfo, name: str) -> TensorInfo:
            scale = None if info.scale is None else moved(info.scale, f"{name}.scale")
            return replace(info, file=self._file, offset=at + layout.offsets[name], scale=scale)

        return [moved(info, part) for part, info in zip(PARTS, own, strict=True)]

    def _compare_samples(self) -> None:
        """A few bytes of every block, because the fingerprint looks at no expert's."""
        for block in range(len(self._layouts)):
            key = block * self.experts + block % self.experts
            packed, own = named_tensors(self.infos(key)), named_tensors(super().infos(key))
            for name in own:
                if _sample(packed[name]) != _sample(own[name]):
                    raise ModelFormatError(
                        f"{self.path}: {self.name(key)}: {name} has other bytes than in {self.checkpoint.path}: "
                        "the pack was made from another model, or one of them is damaged"
                    )


def _sample(info: TensorInfo) -> bytes:
    return info.file.view(info.offset + info.nbytes // 2, min(SAMPLE, info.nbytes // 2)).tobytes()


def read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """The header, as it was written, and where the experts begin."""
    path = file.path
    if file.size < FIXED.size or file.view(0, len(MAGIC)).tobytes() != MAGIC:
        raise ModelFormatError(f"{path}: not a pack of experts")
    _, version, length, checksum = FIXED.unpack(file.view(0, FIXED.size).tobytes())
    if version != VERSION:
        raise ModelFormatError(f"{path}: a pack of version {version}, expected {VERSION}")
    if length > min(LONGEST_HEADER, file.size - FIXED.size):
        raise ModelFormatError(f"{path}: header of {length:,} bytes in a file of {file.size:,}")
    text = file.view(FIXED.size, length).tobytes()
    if hashlib.sha256(text).digest() != checksum:
        raise ModelFormatError(f"{path}: the header is damaged (its checksum does not match)")
    header = parse_json(text, f"{path}: header")
    if not isinstance(header, dict):
        raise ModelFormatError(f"{path}: header: expected a JSON object, found {type(header).__name__}")
    return header, _up(FIXED.size + length, BLOCK)


def _compare(path: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Nothing in a header is believed: it has to say what follows from the model."""
    for field, meaning in (("model", "fingerprint of the model"), ("experts", "experts in a block")):
        if found.get(field) != expected[field]:
            raise ModelFormatError(
                f"{path}: made from another model: {meaning} {_short(found.get(field))}, "
                f"expected {_short(expected[field])}"
            )
    blocks = found.get("blocks")
    for block, wanted in zip_longest(blocks if isinstance(blocks, list) else [], expected["blocks"]):
        if block != wanted:
            raise ModelFormatError(f"{path}: made for {_short(block)}, expected {_short(wanted)}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"
