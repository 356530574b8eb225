"""What a converted file will hold: every tensor's name and type, the tensors it is made of, and how."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from penstock.errors import ModelFormatError
from penstock.weights import names, types
from penstock.weights.checkpoint import Checkpoint, planned_tensors
from penstock.weights.config_gguf import ARCHITECTURE, config_to_gguf
from penstock.weights.convert_metadata import file_metadata
from penstock.weights.convert_report import FileReport
from penstock.weights.gguf_header import Chunks, PlannedTensor
from penstock.weights.imatrix import Imatrix
from penstock.weights.layout import Role, TensorPlan
from penstock.weights.mixes import Mix
from penstock.weights.quants.block import Floats
from penstock.weights.recode import is_exact, recode, recode_side_by_side, recode_table
from penstock.weights.tensor import TensorInfo
from penstock.weights.types import BF16, F16, WeightType

_STACK = re.compile(r"(.+)\.ffn_(gate|up|down)_exps\.weight")
_NEXTN: Final = {ours: theirs for theirs, ours in names.NEXTN.items()}

# Types that can be encoded in better and worse ways, so that it matters which columns count.
WEIGHED: Final = frozenset(
    {
        *(types.Q4_0, types.Q5_0, types.Q5_1, types.IQ4_NL, types.IQ2_XXS),
        *(types.Q2_K, types.Q3_K, types.Q4_K, types.Q5_K, types.Q6_K),
    }
)

# For rows that are no whole number of 256: what llama.cpp takes then.
NARROWER: Final = {
    types.IQ2_XXS: types.IQ4_NL,
    types.Q2_K: types.Q4_0,
    types.Q3_K: types.Q4_0,
    types.Q4_K: types.Q5_0,
    types.Q5_K: types.Q5_1,
    types.Q6_K: types.Q8_0,
}

# Stored with errors of their own: what is made of these is worse than what is made of the original.
LOSSY: Final = WEIGHED - {types.Q6_K}


@dataclass(frozen=True)
class Recipe:
    """What decides how tensors are written."""

    mix: Mix
    imatrix: Imatrix | None
    threads: int


@dataclass(frozen=True)
class Output:
    """One tensor of a file to be."""

    name: str
    kind: WeightType
    wanted: WeightType  # by the mix
    shape: tuple[int, ...]
    sources: list[TensorInfo]
    chunks: Callable[[], Chunks]
    weighed: bool  # whether an importance matrix says which columns count

    @property
    def nbytes(self) -> int:
        return self.kind.nbytes(self.shape)

    @property
    def exact(self) -> bool:
        return all(is_exact(info.kind, self.kind) for info in self.sources)

    @property
    def planned(self) -> PlannedTensor:
        return PlannedTensor(self.name, self.kind, self.shape, self.chunks)


@dataclass(frozen=True)
class PlannedFile:
    path: Path
    metadata: dict[str, Any]
    outputs: list[Output]

    @property
    def nbytes(self) -> int:
        return sum(output.nbytes for output in self.outputs)

    def report(self) -> FileReport:
        sizes: Counter[str] = Counter()
        for output in self.outputs:
            sizes[output.kind.name] += output.nbytes
        kept = sum(output.exact for output in self.outputs)
        changed = [output for output in self.outputs if not output.exact]
        return FileReport(
            self.path,
            tensors=len(self.outputs),
            kept=kept,
            requantised=len(changed),
            bytes_by_type=dict(sizes),
            fallbacks={o.name: (o.wanted.name, o.kind.name) for o in self.outputs if o.kind is not o.wanted},
            unweighed=tuple(o.name for o in changed if o.kind in WEIGHED and not o.weighed),
            blind=tuple(o.name for o in changed if o.kind is types.IQ2_XXS and not o.weighed),
            twice=tuple(o.name for o in changed if any(info.kind in LOSSY for info in o.sources)),
        )


def trunk_file(checkpoint: Checkpoint, recipe: Recipe, path: Path) -> PlannedFile:
    plans = [plan for plan in planned_tensors(checkpoint) if not plan.name.startswith("mtp.")]
    metadata = _metadata(checkpoint, recipe, checkpoint.config.layer_count)
    return PlannedFile(path, metadata, [_output(checkpoint, recipe, plan, plan.name) for plan in plans])


def whole_file(checkpoint: Checkpoint, recipe: Recipe, path: Path) -> PlannedFile:
    """Trunk and MTP block in one file.  Such a file has one output_hc_*, so both must use the same."""
    draft = draft_file(checkpoint, recipe, path)
    if leaf := own_mixing(checkpoint):
        raise ModelFormatError(
            f"{checkpoint.path}: the MTP block has output mixing of its own (mtp.0.hc_head_{leaf}), for which "
            "one file has no place; write it to a separate file with --mtp"
        )
    extra = [output for output in draft.outputs if output.name.startswith("blk.")]
    return PlannedFile(path, draft.metadata, [*trunk_file(checkpoint, recipe, path).outputs, *extra])


def own_mixing(checkpoint: Checkpoint) -> str | None:
    """The first part of the MTP block's output mixing that is not the trunk's."""
    for leaf in ("fn", "base", "scale"):
        own, trunk = (
            checkpoint.weight(f"{prefix}_{leaf}.weight").decode() for prefix in ("mtp.0.hc_head", "output_hc")
        )
        if not np.array_equal(own, trunk):
            return leaf
    return None


def draft_file(checkpoint: Checkpoint, recipe: Recipe, path: Path) -> PlannedFile:
    """The MTP block as block number `layers`, with what it shares with the trunk; the root's output_hc_* is
    the block's own, because that is the only head such a file can hold."""
    if not checkpoint.has_mtp:
        found = f"only a {checkpoint.draft} module" if checkpoint.draft else "none"
        raise ModelFormatError(f"{checkpoint.path}: an MTP block was asked for (--mtp), found {found}")
    block = checkpoint.config.layer_count
    metadata = _metadata(checkpoint, recipe, blocks=block + 1)
    metadata[f"{ARCHITECTURE}.nextn_predict_layers"] = 1
    outputs = []
    for plan in planned_tensors(checkpoint):
        if plan.name in ("token_embd.weight", "output_norm.weight", "output.weight"):
            outputs.append(_output(checkpoint, recipe, plan, plan.name))
        elif plan.name == "mtp.0.e_proj.weight":
            outputs.append(_joined_projection(checkpoint, recipe, plan, f"blk.{block}.nextn.eh_proj.weight"))
        elif plan.name.startswith("mtp.0.") and plan.name != "mtp.0.h_proj.weight":
            outputs.append(_output(checkpoint, recipe, plan, _draft_name(plan.name, block)))
    return PlannedFile(path, metadata, outputs)


def _metadata(checkpoint: Checkpoint, recipe: Recipe, blocks: int) -> dict[str, Any]:
    metadata = file_metadata(checkpoint, recipe.mix.file_type, recipe.imatrix)
    return metadata | config_to_gguf(checkpoint.config, blocks=blocks)


def _draft_name(name: str, block: int) -> str:
    leaf = name.removeprefix("mtp.0.")
    if leaf.startswith("hc_head_"):
        return leaf.replace("hc_head_", "output_hc_")
    return f"blk.{block}.{_NEXTN.get(leaf, leaf)}"


def _output(checkpoint: Checkpoint, recipe: Recipe, plan: TensorPlan, name: str) -> Output:
    sources = _sources(checkpoint, plan)
    wanted = recipe.mix.target(plan, checkpoint.config.layer_count)
    kind = _fitting(wanted, plan.shape, sources)
    importance = _importance(recipe, name, kind, plan.shape)
    if plan.role is Role.ROUTED and importance is not None and len(importance) not in (1, plan.shape[0]):
        raise ModelFormatError(
            f"{recipe.imatrix and recipe.imatrix.path}: {name}: {len(importance)} parts, expected one for each of "
            f"{plan.shape[0]} experts"
        )
    chunks: Callable[[], Chunks]
    if plan.role is Role.HASH_TABLE:
        chunks = partial(recode_table, sources[0], checkpoint.config.experts)
    else:
        chunks = partial(_one_after_another, sources, kind, importance, recipe.threads)
    return Output(name, kind, wanted, plan.shape, sources, chunks, importance is not None)


def _joined_projection(checkpoint: Checkpoint, recipe: Recipe, plan: TensorPlan, name: str) -> Output:
    """One matrix [hidden, 2 × hidden] for the embedding (first columns) and the trunk's streams."""
    embedding, streams = checkpoint.index["mtp.0.e_proj.weight"], checkpoint.index["mtp.0.h_proj.weight"]
    plan = plan._replace(shape=(plan.shape[0], 2 * plan.shape[1]))
    sources = [embedding, streams]
    wanted = recipe.mix.target(plan, checkpoint.config.layer_count)
    kind = _fitting(wanted, plan.shape, sources)
    importance = _importance(recipe, name, kind, plan.shape)
    chunks = partial(recode_side_by_side, embedding, streams, kind, importance, recipe.threads)
    return Output(name, kind, wanted, plan.shape, sources, chunks, importance is not None)


def _importance(recipe: Recipe, name: str, kind: WeightType, shape: Sequence[int]) -> Floats | None:
    """[parts, columns], or None where it would make no difference."""
    if recipe.imatrix is None or kind not in WEIGHED:
        return None
    return recipe.imatrix.importance(name, shape[-1])


def _sources(checkpoint: Checkpoint, plan: TensorPlan) -> list[TensorInfo]:
    """The tensors whose rows, one after another, are the planned tensor: itself, or one per expert."""
    if plan.role is not Role.ROUTED:
        return [checkpoint.index[plan.name]]
    match = _STACK.fullmatch(plan.name)
    assert match is not None
    return [checkpoint.expert(match[1], number, match[2]) for number in range(plan.shape[0])]


def _one_after_another(
    sources: Sequence[TensorInfo], kind: WeightType, importance: Floats | None, threads: int
) -> Chunks:
    for number, info in enumerate(sources):
        own = importance
        if importance is not None and len(sources) > 1:
            own = importance[number : number + 1] if len(importance) > 1 else importance
        yield from recode(info, kind, own, threads)


def _fitting(wanted: WeightType, shape: Sequence[int], sources: Iterable[TensorInfo]) -> WeightType:
    """The wanted type, or the next one whose blocks make up a row: at last, half precision."""
    if shape[-1] % wanted.block == 0:
        return wanted
    narrower = NARROWER.get(wanted)
    if narrower is not None and shape[-1] % narrower.block == 0:
        return narrower
    return BF16 if all(info.kind is BF16 for info in sources) else F16
