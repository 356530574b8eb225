"""How fast this machine is and how much it holds, for splitting a model."""

import time
from typing import Final

from penstock.backend.base import Backend
from penstock.backend.device import DeviceBackend, HostBackend
from penstock.backend.state import Step
from penstock.cluster.split import token_bytes
from penstock.engine.options import EngineOptions
from penstock.machine.memory import read_memory
from penstock.model import architecture
from penstock.storage.dense import DenseWeights
from penstock.storage.store import MappedExperts
from penstock.weights.checkpoint import Checkpoint

TIMES: Final = 5  # the first ones read the weights


def memory_for_layers(options: EngineOptions, backend: Backend) -> int:
    """Bytes of weights that are fast here: of the device's own memory, if it has any."""
    if isinstance(backend, DeviceBackend):
        return max(0, (options.vram_bytes or backend.free_bytes) - backend.program_bytes)
    return options.memory_bytes or read_memory().safe_budget()


def measure_layer(checkpoint: Checkpoint, backend: Backend) -> float:
    """Seconds of one token in one layer, at best: with the real weights, or, on a device, to which they would have to
    be copied, by the bytes that it reads and how fast it reads."""
    first = checkpoint.layers[0]
    part = checkpoint.slice(range(first, first + 1))
    if isinstance(backend, DeviceBackend):
        seconds = token_bytes(part) / backend.speeds().memory
        backend.release()
        return seconds
    assert isinstance(backend, HostBackend)
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
