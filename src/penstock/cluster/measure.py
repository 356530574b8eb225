"""How fast this machine is, for splitting a model: one token through one layer, with the real weights."""

import time
from typing import Final

from penstock.backend.base import Backend
from penstock.backend.state import Step
from penstock.model import architecture
from penstock.storage.dense import DenseWeights
from penstock.storage.store import MappedExperts
from penstock.weights.checkpoint import Checkpoint

TIMES: Final = 5  # the first ones read the weights


def measure_layer(checkpoint: Checkpoint, backend: Backend) -> float:
    """Seconds, at best."""
    part = checkpoint.slice(range(checkpoint.layers.start, checkpoint.layers.start + 1))
    described = architecture(part.config)
    states = backend.states(described.state_layout(part, kv_dtype="f16", context=64, max_rewind=0))
    model = described.build(part, backend, states, MappedExperts(part, backend), DenseWeights(part, backend))
    slot, best = states.allocate(), float("inf")
    for position in range(TIMES):
        step = Step.of([(slot, position, [0], 0)])
        begin = time.perf_counter()
        model.forward(step)
        best = min(best, time.perf_counter() - begin)
        states.commit(slot, position + 1)
    return best
