"""Opens a model of any supported kind and answers by canonical name.

One validated index: every tensor the model needs is there, has the right shape and a type we can decode, before
a single weight is used.
"""

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.errors import ModelFormatError
from penstock.weights import names
from penstock.weights.config import LayerConfig, ModelConfig
from penstock.weights.config_gguf import block_count, check_architecture, config_from_gguf
from penstock.weights.config_json import config_from_json
from penstock.weights.gguf_reader import GGUFFile, read_gguf
from penstock.weights.layout import EXPERT_PARTS, Role, TensorPlan, draft_tensors, layer_tensors, root_tensors
from penstock.weights.safetensors_reader import read_json_file, read_safetensors_folder
from penstock.weights.tensor import TensorInfo, Weight, check_usable
from penstock.weights.types import FP4_E2M1, I8, I32, I64, U8

SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True)
class Checkpoint:
    """An opened model.  `index` maps canonical names to tensors, `unused` holds what we have no use for."""

    path: Path
    format: str  # "GGUF v3", "safetensors"
    config: ModelConfig
    metadata: dict[str, Any]  # GGUF metadata; empty for safetensors
    index: dict[str, TensorInfo]
    unused: dict[str, TensorInfo]
    draft: str | None  # "MTP", or "DSpark" (recognised, not used)

    @property
    def has_mtp(self) -> bool:
        return self.draft == "MTP"

    def weight(self, name: str) -> Weight:
        return Weight(self.index[name])

    def expert(self, prefix: str, number: int, part: str) -> TensorInfo:
        """Where one expert's `gate`, `up` or `down` matrix lies, however the file groups experts."""
        single = self.index.get(f"{prefix}.ffn_{part}_exps.{number}.weight")
        if single is not None:
            return single
        stacked = self.index.get(f"{prefix}.ffn_{part}_exps.weight")
        if stacked is not None:
            return stacked.part(number)
        both = self.index[f"{prefix}.ffn_gate_up_exps.weight"]
        width = both.shape[1] // 2
        return both.part(number, first_row=0 if part == "gate" else width, rows=width)

    def fingerprint(self) -> str:
        """Identity of the weights: configuration, every tensor's type and shape, and a sample of the bytes.
        Two copies of a model agree; another quantisation or another fine-tune does not."""
        digest = hashlib.sha256(repr(self.config).encode())
        for name, info in sorted(self.index.items()):
            if name.startswith("mtp."):
                continue  # a draft block changes no answer, so it may come and go
            digest.update(f"{name} {info.kind.name} {info.shape}".encode())
            if "_exps." not in name:
                digest.update(info.file.view(info.offset + info.nbytes // 2, min(64, info.nbytes)).tobytes())
        return digest.hexdigest()[:32]


def open_checkpoint(path: str | Path, mtp: str | Path | None = None) -> Checkpoint:
    """Opens a `.gguf` file, the first of several splits, or a folder of safetensors.  `mtp` names a separate
    GGUF file that holds the draft block."""
    path = Path(path)
    if path.is_dir():
        found = _open_folder(path)
    elif path.exists():
        found = _open_gguf(path)
    else:
        raise ModelFormatError(f"{path}: no such file or folder")
    if mtp is not None:
        found = _with_sidecar(found, Path(mtp))
    _validate(found)
    return found


# ── GGUF ──────────────────────────────────────────────────────────────────────────────────────────────────


def _open_gguf(path: Path) -> Checkpoint:
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
    draft = (
        "MTP" if "mtp.0.enorm.weight" in index else "DSpark" if "mtp.0.main_proj.weight" in index else None
    )
    return _split_unused(path, f"GGUF v{files[0].version}", config, metadata, index, draft)


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
    names_ = [path.with_name(f"{match[1]}-{part:05d}-of-{count:05d}.gguf") for part in range(1, count + 1)]
    if number != 0:
        raise ModelFormatError(
            f"{path}: this is split {number + 1} of {count}; open the first one, {names_[0]}"
        )
    files = [first]
    for part, name in enumerate(names_[1:], start=1):
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
            name = f"mtp.0.{names.NEXTN.get(leaf, leaf)}"
        result[name] = info.renamed(name)
    return result


def _with_sidecar(model: Checkpoint, path: Path) -> Checkpoint:
    """Adds the draft block of a separate file: `mtp.0.*`, or llama.cpp's file with one block past the trunk."""
    if not path.exists():
        raise ModelFormatError(f"{path}: no such file (the draft block was to come from it)")
    tensors = read_gguf(path).tensors
    block = model.config.layer_count
    if f"blk.{block}.nextn.eh_proj.weight" in tensors:
        renamed = _rename_nextn(tensors, block)
        for leaf in ("fn", "base", "scale"):  # in this file the root's mixing is the draft block's own
            if f"output_hc_{leaf}.weight" in renamed:
                renamed[f"mtp.0.hc_head_{leaf}.weight"] = renamed[f"output_hc_{leaf}.weight"]
        tensors = renamed
    draft = {name: info for name, info in tensors.items() if name.startswith("mtp.0.")}
    if "mtp.0.enorm.weight" not in draft:
        raise ModelFormatError(f"{path}: no MTP block for a {block}-layer model (no mtp.0.enorm.weight)")
    index = {name: info for name, info in model.index.items() if not name.startswith("mtp.")} | draft
    return _split_unused(model.path, model.format, model.config, model.metadata, index | model.unused, "MTP")


# ── safetensors ───────────────────────────────────────────────────────────────────────────────────────────


def _open_folder(folder: Path) -> Checkpoint:
    config_path = folder / "config.json"
    if not config_path.exists():
        raise ModelFormatError(f"{folder}: no config.json in the folder")
    config = config_from_json(read_json_file(config_path), str(config_path))
    tensors = read_safetensors_folder(folder)
    index: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        canonical = names.from_safetensors(name)
        if canonical is None:
            if not name.endswith(".scale"):
                index[name] = info
            continue
        if canonical in index:
            raise ModelFormatError(f"{info.file.path}: tensor {name} is a second {canonical}")
        scale = tensors.get(names.scale_of(name))
        index[canonical] = _attach_scale(info.renamed(canonical), scale)
    draft = (
        "MTP" if "mtp.0.e_proj.weight" in index else "DSpark" if "mtp.0.main_proj.weight" in index else None
    )
    return _split_unused(folder, "safetensors", config, {}, index, draft)


def _attach_scale(info: TensorInfo, scale: TensorInfo | None) -> TensorInfo:
    if scale is None:
        return info
    kind, shape = info.kind, info.shape
    if kind in (I8, U8):  # two FP4 values in a byte
        kind, shape = FP4_E2M1, (*shape[:-1], shape[-1] * 2)
    return TensorInfo(info.name, kind, shape, info.file, info.offset, info.nbytes, scale)


# ── validation ────────────────────────────────────────────────────────────────────────────────────────────


def planned_tensors(model: Checkpoint) -> list[TensorPlan]:
    """What this model needs, draft block included if it has one."""
    config, index = model.config, model.index
    plans = list(root_tensors(config))
    blocks: list[tuple[str, LayerConfig]] = [(f"blk.{n}", layer) for n, layer in enumerate(config.layers)]
    if model.has_mtp:
        blocks.append(("mtp.0", config.mtp_layer))
        plans.extend(draft_tensors(config, fused="mtp.0.eh_proj.weight" in index))
    for prefix, layer in blocks:
        gate = index.get(f"{prefix}.ffn_gate_shexp.weight")
        shared_width = gate.shape[0] if gate is not None else layer.expert_width
        plans.extend(layer_tensors(config, layer, prefix, shared_width))
    return plans


def _split_unused(
    path: Path,
    format: str,
    config: ModelConfig,
    metadata: dict[str, Any],
    index: dict[str, TensorInfo],
    draft: str | None,
) -> Checkpoint:
    whole = Checkpoint(path, format, config, metadata, index, {}, draft)
    wanted = set()
    for plan in planned_tensors(whole):
        wanted.update([plan.name] if plan.role is not Role.ROUTED else expert_names(plan, index))
    used = {name: info for name, info in index.items() if name in wanted}
    unused = {name: info for name, info in index.items() if name not in wanted}
    return Checkpoint(path, format, config, metadata, used, unused, draft)


def expert_names(plan: TensorPlan, index: dict[str, TensorInfo]) -> list[str]:
    """The index entries that together make one stack of experts."""
    stem = plan.name.removesuffix(".weight")
    if plan.name in index:
        return [plan.name]
    fused = re.sub(r"ffn_(gate|up)_exps$", "ffn_gate_up_exps", stem) + ".weight"
    if fused in index:
        return [fused]
    return [f"{stem}.{number}.weight" for number in range(plan.shape[0])]


def _validate(model: Checkpoint) -> None:
    for plan in planned_tensors(model):
        if plan.role is not Role.ROUTED:
            _check(model, plan.name, plan.shape)
            continue
        experts, out, columns = plan.shape
        for name in expert_names(plan, model.index):
            if name == plan.name:
                _check(model, name, plan.shape)
            elif "gate_up" in name:
                _check(model, name, (experts, 2 * out, columns))
            else:
                _check(model, name, (out, columns))
        if plan.role is Role.ROUTED and plan.name not in model.index and "gate_up" not in name:
            _check_no_extra_experts(model, plan)


def _check_no_extra_experts(model: Checkpoint, plan: TensorPlan) -> None:
    extra = f"{plan.name.removesuffix('.weight')}.{plan.shape[0]}.weight"
    if extra in model.unused:
        raise ModelFormatError(
            f"{model.path}: {extra} exists but the model is said to have {plan.shape[0]} experts"
        )


def _check(model: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    info = model.index.get(name)
    if info is None:
        raise ModelFormatError(f"{model.path}: tensor {name} is missing, expected shape {list(shape)}")
    where = f"{info.file.path}: tensor {name}"
    if info.shape != shape:
        raise ModelFormatError(f"{where}: shape {list(info.shape)}, expected {list(shape)}")
    is_table = name.endswith("tid2eid.weight")
    if is_table != (info.kind in (I32, I64)):
        expected = "I32 or I64" if is_table else "a weight type"
        raise ModelFormatError(f"{where}: type {info.kind.name}, expected {expected}")
    check_usable(info)


__all__ = ["EXPERT_PARTS", "Checkpoint", "open_checkpoint", "planned_tensors"]
