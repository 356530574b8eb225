"""What a model file contains, in numbers: bytes by purpose and by type, and what could be streamed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from penstock.errors import ModelFormatError
from penstock.weights.checkpoint import Checkpoint, expert_names, planned_tensors
from penstock.weights.layout import Role
from penstock.weights.tensor import TensorInfo, Weight
from penstock.weights.types import I32, I64

SLAB = 1 << 22  # values checked at a time


def roles(model: Checkpoint) -> dict[str, Role]:
    """Purpose of every tensor that the model uses."""
    result = {}
    for plan in planned_tensors(model):
        for name in expert_names(plan, model.index):
            result[name] = plan.role
    return result


def summarise(model: Checkpoint) -> dict[str, Any]:
    """A plain, JSON-ready description of an opened model."""
    by_role: Counter[str] = Counter()
    by_type: Counter[str] = Counter()
    parameters = 0
    tensor_roles = roles(model)
    for name, info in model.index.items():
        role = tensor_roles[name]
        by_role[role.value] += info.total_bytes
        by_type[info.kind.name] += info.total_bytes
        parameters += int(np.prod(info.shape)) if role is not Role.HASH_TABLE else 0
    total = sum(by_role.values())
    config = asdict(model.config)
    layers = config.pop("layers")
    return {
        "path": str(model.path),
        "format": model.format,
        "files": sorted({str(info.file.path) for info in model.index.values()}),
        "parameters": parameters,
        "bytes": total,
        "bytes_by_role": dict(by_role.most_common()),
        "bytes_by_type": dict(by_type.most_common()),
        "streamable": _streamable(model),
        "draft": model.draft,
        "draft_used": model.has_draft,
        "tokenizer": _tokenizer(model),
        "unused_tensors": sorted(model.unused),
        "config": config,
        "layers": layers,
        "fingerprint": model.fingerprint(),
    }


def _streamable(model: Checkpoint) -> dict[str, Any]:
    """Without the draft block, which commands leave out."""
    config = model.config
    count = config.layer_count * config.experts
    per_layer = [
        sum(model.expert(f"blk.{number}", 0, part).total_bytes for part in ("gate", "up", "down"))
        for number in range(config.layer_count)
    ]
    return {
        "bytes": sum(per_layer) * config.experts,
        "experts": count,
        "bytes_per_expert": per_layer[0] if len(set(per_layer)) == 1 else per_layer,
        "bytes_per_token": sum(per_layer) * config.experts_used,
    }


def _tokenizer(model: Checkpoint) -> str:
    if not model.metadata:
        return "tokenizer.json" if (model.path / "tokenizer.json").exists() else "none"
    kind = model.metadata.get("tokenizer.ggml.model", "none")
    return f"{kind} ({model.metadata.get('tokenizer.ggml.pre', '?')})" if kind != "none" else "none"


def verify(model: Checkpoint, progress: Callable[[int], None] = lambda _: None) -> None:
    """Reads every weight and raises ModelFormatError at the first that is not a finite number."""
    for info in model.index.values():
        if info.kind not in (I32, I64):
            _verify_tensor(info)
        progress(info.total_bytes)


def _verify_tensor(info: TensorInfo) -> None:
    matrix = Weight(info)
    step = max(1, SLAB // info.shape[-1])
    for start in range(0, matrix.raw.shape[0], step):
        values = matrix.rows(start, start + step)
        if not np.isfinite(values).all():
            row = start + int(np.argmin(np.isfinite(values).all(axis=1)))
            raise ModelFormatError(
                f"{info.file.path}: tensor {info.name}: row {row} holds values that are not finite numbers. "
                "The file is damaged; download it again."
            )
