"""An opened model: one validated index over every kind of file.

Every tensor the model needs is there, has the right shape and a type we can decode, before a single weight is used.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from penstock.errors import ModelFormatError
from penstock.weights.config import LayerConfig, ModelConfig
from penstock.weights.files import MappedFile
from penstock.weights.layout import (
    Role,
    TensorPlan,
    draft_tensors,
    dspark_tensors,
    layer_tensors,
    root_tensors,
)
from penstock.weights.tensor import TensorInfo, Weight, check_usable
from penstock.weights.types import I32, I64

DSPARK: Final = "mtp.0.main_proj.weight"  # what no other draft block has
APART: Final = 1 << 20  # bytes between tensors that are not read together


@dataclass(frozen=True)
class Checkpoint:
    """An opened model.  `index` maps canonical names to tensors, `unused` holds what we have no use for."""

    path: Path
    format: str  # "GGUF v3", "safetensors"
    config: ModelConfig
    metadata: dict[str, Any]  # GGUF metadata; empty for safetensors
    index: dict[str, TensorInfo]
    unused: dict[str, TensorInfo]
    draft: str | None  # "MTP" or "DSpark"; a DSpark module that is not whole is not used
    part: tuple[range, ...] | None = None  # of layers, if it is not the whole model: see `slice`

    @property
    def has_mtp(self) -> bool:
        return self.draft == "MTP"

    @property
    def has_dspark(self) -> bool:
        return self.draft == "DSpark" and DSPARK in self.index

    @property
    def has_draft(self) -> bool:
        """Whether there is a draft block or module that can be used."""
        return self.has_mtp or self.has_dspark

    @property
    def draft_blocks(self) -> list[str]:
        """The draft block, or the stages of a DSpark module."""
        if self.has_dspark:
            return [f"mtp.{number}" for number in range(_dspark_stages(self.index))]
        return ["mtp.0"] if self.has_mtp else []

    def without_draft(self) -> "Checkpoint":
        """The same model; its draft block, if it has one, is not used."""
        if not self.has_draft:
            return self
        draft = {name: info for name, info in self.index.items() if name.startswith("mtp.")}
        index = {name: info for name, info in self.index.items() if name not in draft}
        return replace(self, index=index, unused=self.unused | draft, draft=None)

    @property
    def stretches(self) -> tuple[range, ...]:
        """The layers that are here: those of a stretch follow each other."""
        return (range(self.config.layer_count),) if self.part is None else self.part

    @property
    def layers(self) -> Sequence[int]:
        """The layers that are here, in their order."""
        return [number for stretch in self.stretches for number in stretch]

    @property
    def blocks(self) -> list[str]:
        """What is here, in the order in which a token passes through it: layers, and the draft block."""
        return [*(f"blk.{number}" for number in self.layers), *self.draft_blocks]

    @property
    def is_last(self) -> bool:
        """Whether the last layer is here, and with it the head and the draft block."""
        return self.stretches[-1].stop == self.config.layer_count

    def slice(self, *stretches: range) -> "Checkpoint":
        """Some layers of the model: the first ones with the embedding, the last ones with head and draft block."""
        at, count = 0, self.config.layer_count
        for each in stretches:
            if not at <= each.start < each.stop <= count:
                raise ValueError(f"layers [{each.start}, {each.stop}) of a model with {count}")
            at = each.stop
        first_too, last = stretches[0].start == 0, at == count
        numbers = {number for each in stretches for number in each}

        def is_here(name: str) -> bool:
            first, _, rest = name.partition(".")
            if first == "blk":
                return int(rest.partition(".")[0]) in numbers
            if first == "token_embd":  # the draft block embeds too
                return first_too or (last and self.has_draft)
            return last

        index = {name: info for name, info in self.index.items() if is_here(name)}
        return replace(self, index=index, draft=self.draft if last else None, part=stretches)

    def extents(self) -> list[tuple[MappedFile, int, int]]:
        """Where in the files its tensors lie: (file, first byte, end).  What is near each other is one."""
        if self.part is None:
            return [(file, 0, file.size) for file in self.files]
        found: list[tuple[MappedFile, int, int]] = []
        infos = [each for info in self.index.values() for each in (info, info.scale) if each is not None]
        for info in sorted(infos, key=lambda info: (str(info.file.path), info.offset)):
            file, start, end = info.file, info.offset, info.offset + info.nbytes
            if found and found[-1][0] is file and start - found[-1][2] < APART:
                found[-1] = (file, found[-1][1], max(end, found[-1][2]))
            else:
                found.append((file, start, end))
        return found

    @property
    def files(self) -> list[MappedFile]:
        """The files that tensors are in."""
        return list({id(info.file): info.file for info in self.index.values()}.values())

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


def planned_tensors(model: Checkpoint) -> list[TensorPlan]:
    """What this model needs, draft block included if it has one."""
    config, index = model.config, model.index
    plans = list(root_tensors(config))
    plans = plans if model.part is None else [plan for plan in plans if plan.name in index]
    blocks: list[tuple[str, LayerConfig]] = [(f"blk.{n}", config.layers[n]) for n in model.layers]
    blocks += [(block, config.mtp_layer) for block in model.draft_blocks]
    if model.has_mtp:
        plans.extend(draft_tensors(config, fused="mtp.0.eh_proj.weight" in index))
    if model.has_dspark:
        stages = len(model.draft_blocks)
        features = _second(index, DSPARK) // config.hidden
        rank = _second(index, f"mtp.{stages - 1}.markov_w1.weight")
        plans.extend(dspark_tensors(config, stages, features, rank))
    for prefix, layer in blocks:
        gate = index.get(f"{prefix}.ffn_gate_shexp.weight")
        shared_width = gate.shape[0] if gate is not None else layer.expert_width
        plans.extend(layer_tensors(config, layer, prefix, shared_width))
    return plans


def split_unused(
    path: Path,
    format: str,
    config: ModelConfig,
    metadata: dict[str, Any],
    index: dict[str, TensorInfo],
) -> Checkpoint:
    """A checkpoint whose index holds just what the model needs; the rest is kept apart as unused."""
    draft = _draft_module(index)
    whole = Checkpoint(path, format, config, metadata, index, {}, draft)
    wanted, missing = set(), False
    for plan in planned_tensors(whole):
        names = [plan.name] if plan.role is not Role.ROUTED else expert_names(plan, index)
        wanted.update(names)
        missing |= plan.name.startswith("mtp.") and not index.keys() >= set(names)
    if draft == "DSpark" and missing:
        wanted = {name for name in wanted if not name.startswith("mtp.")}
    used = {name: info for name, info in index.items() if name in wanted}
    unused = {name: info for name, info in index.items() if name not in wanted}
    return Checkpoint(path, format, config, metadata, used, unused, draft)


def _draft_module(index: dict[str, TensorInfo]) -> str | None:
    """Which draft module is there.  Its tensors tell; what files say of it is often wrong."""
    if DSPARK in index:
        return "DSpark"
    return "MTP" if "mtp.0.enorm.weight" in index else None


def _dspark_stages(index: dict[str, TensorInfo]) -> int:
    """Consecutive from the first; there is one at least, of which the rest may be missing."""
    return next(number for number in count(1) if f"mtp.{number}.attn_kv.weight" not in index)


def _second(index: dict[str, TensorInfo], name: str) -> int:
    """Columns of a matrix; 1 where it is missing or none, which is said when tensors are checked."""
    info = index.get(name)
    return info.shape[1] if info is not None and len(info.shape) == 2 else 1


def expert_names(plan: TensorPlan, index: dict[str, TensorInfo]) -> list[str]:
    """The index entries that together make one stack of experts."""
    stem = plan.name.removesuffix(".weight")
    if plan.name in index:
        return [plan.name]
    fused = re.sub(r"ffn_(gate|up)_exps$", "ffn_gate_up_exps", stem) + ".weight"
    if fused in index:
        return [fused]
    return [f"{stem}.{number}.weight" for number in range(plan.shape[0])]


def validate(model: Checkpoint) -> None:
    """Raises ModelFormatError unless every planned tensor is there, in a shape and type that can be used."""
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
