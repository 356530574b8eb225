"""Opens GGUF models: single or split, with a draft block inside or beside them."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.errors import ModelFormatError
from penstock.weights.checkpoint import Checkpoint, split_unused
from penstock.weights.config_gguf import block_count, check_architecture, config_from_gguf
from penstock.weights.gguf_reader import GGUFFile, read_gguf
from penstock.weights.names import DFLASH_FIRST, DFLASH_LAST, NEXTN
from penstock.weights.tensor import TensorInfo

SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def open_gguf(path: Path) -> Checkpoint:
    files = _read_splits(path)
    metadata = files[0].metadata
    check_architecture(metadata, str(path))
    tensors: dict[str, TensorInfo] = {}
    for file in files:
        for name, info in file.tensors.items():
            if name in tensors:
                raise ModelFormatError(
                    f"{file.path}: tensor {name} is also in {tensors[name].file.path.name}"
                )
            tensors[name] = _flat_groups(info)
    trunk, stored = _trunk_layers(metadata, tensors, str(path))
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelFormatError(
            f"{path}: tensor token_embd.weight is missing, expected a matrix [vocab, hidden]"
        )
    config = config_from_gguf(metadata, str(path), trunk, vocab_size=embedding.shape[0])
    index = _rename_nextn(tensors, trunk) if stored else dict(tensors)
    if stored:
        # One file can hold only one set of output_hc_*; llama.cpp lets the draft block share the trunk's.
        for leaf in ("fn", "base", "scale"):
            shared = tensors.get(f"output_hc_{leaf}.weight")
            if shared is not None and f"mtp.0.hc_head_{leaf}.weight" not in index:
                index[f"mtp.0.hc_head_{leaf}.weight"] = shared.renamed(f"mtp.0.hc_head_{leaf}.weight")
    return split_unused(path, f"GGUF v{files[0].version}", config, metadata, index)


def _flat_groups(info: TensorInfo) -> TensorInfo:
    """Some files keep the grouped projection as [groups, rank, in]; the bytes are those of [groups · rank, in]."""
    if info.name.endswith(".attn_output_a.weight") and len(info.shape) == 3:
        groups, rank, columns = info.shape
        return replace(info, shape=(groups * rank, columns))
    return info


def _read_splits(path: Path) -> list[GGUFFile]:
    first = read_gguf(path)
    count = first.metadata.get("split.count", 1)
    number = first.metadata.get("split.no", 0)
    if not isinstance(count, int) or not 1 <= count <= 99_999 or not isinstance(number, int):
        raise ModelFormatError(f"{path}: split.count is {count!r}, expected a small whole number")
    if count == 1:
        return [first]
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise ModelFormatError(
            f"{path}: one of {count} splits, but the name is not NAME-00001-of-{count:05d}.gguf"
        )
    paths = [path.with_name(f"{match[1]}-{part:05d}-of-{count:05d}.gguf") for part in range(1, count + 1)]
    if number != 0:
        raise ModelFormatError(
            f"{path}: this is split {number + 1} of {count}; open the first one, {paths[0]}"
        )
    files = [first]
    for part, name in enumerate(paths[1:], start=1):
        if not name.exists():
            raise ModelFormatError(f"{name}: split {part + 1} of {count} is missing")
        file = read_gguf(name)
        if file.metadata.get("split.no") != part or file.metadata.get("split.count") != count:
            raise ModelFormatError(f"{name}: split.no/split.count do not say {part} of {count}")
        files.append(file)
    expected = first.metadata.get("split.tensors.count")
    total = sum(len(file.tensors) for file in files)
    if expected is not None and expected != total:
        raise ModelFormatError(f"{path}: split.tensors.count is {expected}, but the splits hold {total}")
    return files


def _trunk_layers(metadata: dict[str, Any], tensors: dict[str, TensorInfo], source: str) -> tuple[int, bool]:
    """(trunk layers, whether the last block is the draft block).  Tensors decide: metadata often claims draft
    layers that are not in the file."""
    blocks = block_count(metadata, source)
    if f"blk.{blocks - 1}.nextn.eh_proj.weight" in tensors:
        if blocks == 1:
            raise ModelFormatError(f"{source}: the only block is a draft block")
        return blocks - 1, True
    return blocks, False


def _rename_nextn(tensors: dict[str, TensorInfo], block: int) -> dict[str, TensorInfo]:
    """Moves `blk.{block}.*` to `mtp.0.*`."""
    result = {}
    for name, info in tensors.items():
        leaf = name.removeprefix(f"blk.{block}.")
        if leaf != name:
            name = f"mtp.0.{NEXTN.get(leaf, leaf)}"
        result[name] = info.renamed(name)
    return result


def _rename_dflash(tensors: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """llama.cpp's names of a DSpark module → ours."""
    stages = {int(name.split(".")[1]) for name in tensors if re.match(r"blk\.\d{1,3}\.", name)}
    result = {}
    for name, info in tensors.items():
        ours = None
        if name in DFLASH_FIRST:
            ours = f"mtp.0.{DFLASH_FIRST[name]}"
        elif name in DFLASH_LAST:
            ours = f"mtp.{max(stages, default=0)}.{DFLASH_LAST[name]}"
        elif re.match(r"blk\.\d{1,3}\.", name):
            ours = "mtp." + name.removeprefix("blk.")
        if ours is not None:  # embedding and output matrix are the trunk's
            result[ours] = info.renamed(ours)
    return result


def with_sidecar(model: Checkpoint, path: Path) -> Checkpoint:
    """Adds the draft block of a separate file: `mtp.K.*`, or llama.cpp's files: MTP with one block past the trunk, or
    DSpark."""
    if not path.exists():
        raise ModelFormatError(f"{path}: no such file (the draft block was to come from it)")
    file = read_gguf(path)
    tensors, block = file.tensors, model.config.layer_count
    if "fc.weight" in tensors:  # a DSpark module, as llama.cpp writes it
        tensors = _rename_dflash(tensors)
    if f"blk.{block}.nextn.eh_proj.weight" in tensors:
        renamed = _rename_nextn(tensors, block)
        for leaf in ("fn", "base", "scale"):  # in this file the root's mixing is the draft block's own
            if f"output_hc_{leaf}.weight" in renamed:
                renamed[f"mtp.0.hc_head_{leaf}.weight"] = renamed[f"output_hc_{leaf}.weight"]
        tensors = renamed
    draft = {name: info for name, info in tensors.items() if name.startswith("mtp.")}
    if "mtp.0.enorm.weight" not in draft and "mtp.0.main_proj.weight" not in draft:
        raise ModelFormatError(
            f"{path}: no draft block for a {block}-layer model (no mtp.0.enorm.weight, no mtp.0.main_proj.weight)"
        )
    index = {name: info for name, info in model.index.items() if not name.startswith("mtp.")} | draft
    return split_unused(model.path, model.format, model.config, model.metadata, index | model.unused)
