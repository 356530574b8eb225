"""Routed experts of DeepSeek-V4 alone, as a machine computes them for another one."""

from penstock.backend.base import Array, Backend
from penstock.backend.state import StateLayout
from penstock.model.base import RoutedExperts
from penstock.model.deepseek_v4.description import Description
from penstock.model.deepseek_v4.state import all_series
from penstock.storage.dense import DenseWeights
from penstock.storage.store import ExpertStore
from penstock.weights.checkpoint import Checkpoint


class DeepSeekV4Experts(RoutedExperts):
    def __init__(self, checkpoint: Checkpoint, backend: Backend, experts: ExpertStore):
        config = checkpoint.config
        description = Description(checkpoint, backend, DenseWeights(checkpoint, backend))
        # Sequences are somebody else's: there is room for one token of them.
        series = tuple(all_series(config, "f16", range(1), False))
        pool = backend.states(StateLayout(series, 1, 0, "f16", config.vocab_size))
        ops = backend.deepseek_v4()(backend, pool)
        layers = {f"blk.{number}": config.layers[number] for number in checkpoint.layers}
        layers |= dict.fromkeys(checkpoint.draft_blocks, config.mtp_layer)
        self._ops = {block: ops.experts(description.experts(block, layer)) for block, layer in layers.items()}
        self._backend, self._store, self._nobody = backend, experts, config.experts

    def terms(self, block: str, x: Array, ids: Array, weights: Array) -> Array:
        numbers = self._backend.host(ids)
        asked = self._backend.device(numbers[numbers != self._nobody].reshape(1, -1))
        with self._store.acquire(block, asked) as lease:
            return self._ops[block].terms(x, ids, weights, lease)
