"""A checkpoint without a file: which tensors a model would have, of which types, and where they would lie.

For questions about models that are not here: how much memory would it take, how fast would it be?  What it says of
places is what a GGUF file with the same tensors would say; its values are all one.

    >>> from penstock.weights.synth import stored_type
    >>> from penstock.weights.widths import WIDTHS
    >>> flash = imagine(WIDTHS["flash"].whole(), lambda plan: stored_type(plan, "q2"))
    >>> round(sum(info.nbytes for info in flash.index.values()) / 1e9)
    87
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig
from penstock.weights.files import MappedFile
from penstock.weights.layout import TensorPlan, layer_tensors, root_tensors
from penstock.weights.tensor import FP4_GROUP, FP8_BLOCK, TensorInfo
from penstock.weights.types import E8M0, FP4_E2M1, FP8_E4M3, WeightType

ALIGNMENT: Final = 32  # of tensors in a GGUF file


class ImaginedFile(MappedFile):
    """Every float32 in it is 1."""

    def __init__(self, path: Path):
        self.path, self.size = path, 0

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        del offset
        return np.ones(-(-nbytes // 4), np.float32).view(np.uint8)[:nbytes]

    def _advise(self, name: str) -> None:
        del name


def imagine(
    config: ModelConfig, type_of: Callable[[TensorPlan], WeightType], path: Path = Path("imagined")
) -> Checkpoint:
    """The model with this configuration, without a draft block; `type_of` says how a tensor is stored."""
    file = ImaginedFile(path)
    index = {}

    def place(name: str, kind: WeightType, shape: tuple[int, ...]) -> TensorInfo:
        at, nbytes = file.size, kind.nbytes(shape)
        file.size = at + -(-nbytes // ALIGNMENT) * ALIGNMENT
        return TensorInfo(name, kind, shape, file, at, nbytes)

    plans = list(root_tensors(config))
    for number, layer in enumerate(config.layers):
        plans.extend(layer_tensors(config, layer, f"blk.{number}", layer.expert_width))
    for plan in plans:
        kind, shape = type_of(plan), plan.shape
        if kind in (FP8_E4M3, FP4_E2M1) and len(plan.shape) == 3:  # experts with scales are not stacked
            experts, out, columns = plan.shape
            stem = plan.name.removesuffix(".weight")
            names, shape = [f"{stem}.{number}.weight" for number in range(experts)], (out, columns)
        else:
            names = [plan.name]
        for name in names:
            info = place(name, kind, shape)
            scales = _scale_shape(kind, shape)
            if scales is not None:
                info = _with_scale(info, place(f"{name} scale", E8M0, scales))
            index[name] = info
    return Checkpoint(path, "imagined", config, {}, index, {}, None)


def _scale_shape(kind: WeightType, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if kind is FP8_E4M3:
        return (-(-shape[0] // FP8_BLOCK), -(-shape[1] // FP8_BLOCK))
    return (shape[0], shape[1] // FP4_GROUP) if kind is FP4_E2M1 else None


def _with_scale(info: TensorInfo, scale: TensorInfo) -> TensorInfo:
    return TensorInfo(info.name, info.kind, info.shape, info.file, info.offset, info.nbytes, scale)
