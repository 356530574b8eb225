"""Which experts each skill uses: shares by layer, and how evenly they are spread.

python -m pocket.use OUT.json [--model FILE]
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from penstock.backend.base import Array, Backend
from penstock.engine.engine import Engine
from penstock.model.deepseek_v4.model import DeepSeekV4
from penstock.pocket import pocket_path
from penstock.storage.store import Lease, TableStore
from pocket.batches import encode
from pocket.data import MIXTURE, sample

PER_SKILL = 12  # conversations


class CountingExperts(TableStore):
    """A store that notes which experts were chosen, and leaves the work to another."""

    def __init__(self, inner: TableStore, backend: Backend, layers: int, experts: int):
        self.inner, self.backend = inner, backend
        self.counts = np.zeros((layers, experts))

    def acquire(self, block: str, ids: Array, following: Callable[[], None] | None = None) -> Lease:
        if block.startswith("blk."):
            chosen = np.bincount(self.backend.host(ids).reshape(-1), minlength=self.counts.shape[1])
            self.counts[int(block.removeprefix("blk."))] += chosen
        return self.inner.acquire(block, ids, following)


def expert_use(engine: Engine, conversations: int = PER_SKILL) -> dict[str, list[list[float]]]:
    """skill → share of every expert in every layer"""
    result = {}
    for skill in MIXTURE:
        model = engine.runner.model
        assert isinstance(model, DeepSeekV4)
        layers = model.layers
        store = layers[0].store
        assert isinstance(store, TableStore)
        counting = CountingExperts(store, engine.backend, len(layers), engine.config.experts)
        for layer in layers:
            layer.store = counting
        rng = Random(skill)
        for _ in range(conversations):
            conversation = sample(skill, rng, length=600)
            engine.session().feed(encode(conversation, engine.tokenizer).ids, logits="none")
        for layer in layers:
            layer.store = counting.inner
        result[skill] = (counting.counts / counting.counts.sum(1, keepdims=True)).round(4).tolist()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pocket.use")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", type=Path, default=None, help="the shipped file if not given")
    options = parser.parse_args()
    use = expert_use(Engine(options.model or pocket_path()))
    options.out.write_text(json.dumps(use))
    mean = np.mean(list(use.values()), axis=0)  # [layers, experts]
    entropy = -(mean * np.log2(np.maximum(mean, 1e-9))).sum(1)
    print(f"bits of entropy per layer (at most {np.log2(mean.shape[1]):.0f}): {entropy.round(2).tolist()}")
    print(f"least used expert, against an even share: {(mean.min(1) * mean.shape[1]).round(2).tolist()}")


if __name__ == "__main__":
    main()
