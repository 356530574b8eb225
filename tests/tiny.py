"""Tiny random models on disk, with the logits that transformers computes for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracles import hf


@dataclass(frozen=True)
class TinyModel:
    folder: Path
    model: Any  # DeepseekV4ForCausalLM
    ids: list[int]
    logits: NDArray[np.float32]  # [len(ids), vocab]

    @property
    def range(self) -> float:
        return float(self.logits.max() - self.logits.min())

    def error(self, found: NDArray[np.float32] | None) -> float:
        """Largest difference from the oracle as a share of its logit range."""
        assert found is not None
        return float(np.abs(found - self.logits).max()) / self.range


def make_tiny(
    folder: Path, length: int, start: int = 0, gap: float = hf.SAFE_GAP, **overrides: Any
) -> TinyModel:
    """A model whose expert and indexer choices are all clear-cut for its own ids."""
    config = hf.tiny_config(**overrides)
    seed = hf.pick_seed(config, length, start, gap)
    model = hf.random_model(config, seed)
    ids = hf.random_ids(config, length, seed)
    hf.save(model, folder)
    return TinyModel(folder, model, ids, hf.logits(model, ids))
