"""Routed experts of DeepSeek-V4 alone, as a machine computes them for another one."""

import numpy as np
from numpy.typing import NDArray

from penstock.backend import deepseek_v4 as v4
from penstock.backend.base import Vector
from penstock.backend.device import DeviceBackend, HeldStack, HostBackend
from penstock.backend.state import StateLayout
from penstock.model.base import RoutedExperts
from penstock.model.deepseek_v4.description import Description
from penstock.model.deepseek_v4.state import all_series
from penstock.storage.dense import DenseWeights
from penstock.storage.source import PARTS
from penstock.storage.store import MappedExperts
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import LayerConfig
from penstock.weights.tensor import Weight


def layers_of(checkpoint: Checkpoint) -> dict[str, LayerConfig]:
    """By block."""
    config = checkpoint.config
    layers = {f"blk.{number}": config.layers[number] for number in checkpoint.layers}
    return layers | dict.fromkeys(checkpoint.draft_blocks, config.mtp_layer)


class HostExperts(RoutedExperts):
    """Straight from the mapped file."""

    def __init__(self, checkpoint: Checkpoint, backend: HostBackend):
        config = checkpoint.config
        description = Description(checkpoint, backend, DenseWeights(checkpoint, backend))
        # Sequences are somebody else's: there is room for one token of them.
        series = tuple(all_series(config, "f16", range(1), False))
        pool = backend.states(StateLayout(series, 1, 0, "f16", config.vocab_size))
        ops, layers = backend.deepseek_v4()(backend, pool), layers_of(checkpoint)
        self._ops: dict[str, v4.TermwiseExperts] = {}
        for block, layer in layers.items():
            experts = ops.experts(description.experts(block, layer))
            assert isinstance(experts, v4.TermwiseExperts)
            self._ops[block] = experts
        self._backend, self._nobody = backend, config.experts
        self._store = MappedExperts(checkpoint, backend)

    def terms(self, block: str, x: Vector, ids: NDArray[np.int64], weights: Vector) -> Vector:
        mine, on = ids != self._nobody, self._backend.device
        with self._store.acquire(block, on(ids[mine].reshape(1, -1))) as lease:
            found = self._backend.host(self._ops[block].terms(on(x), on(ids), on(weights), lease))
        terms: Vector = found[: ids.size][mine.reshape(-1)]
        return terms


class DeviceExperts(RoutedExperts):
    """Those with these numbers, in a device's memory."""

    def __init__(self, checkpoint: Checkpoint, backend: DeviceBackend, numbers: range):
        config, self._numbers = checkpoint.config, numbers
        self._limits = {block: layer.swiglu_limit for block, layer in layers_of(checkpoint).items()}
        self._held: dict[str, HeldStack] = {}
        for block in checkpoint.blocks:
            experts = [[checkpoint.expert(block, number, part) for part in PARTS] for number in numbers]
            held = self._held[block] = backend.held_stack(experts, config.experts_used)
            for number, expert in enumerate(experts):
                for part, weight in enumerate(map(Weight, expert)):
                    held.place(part, number, weight.info, weight.raw, weight.scale)
            backend.fence()()

    def terms(self, block: str, x: Vector, ids: NDArray[np.int64], weights: Vector) -> Vector:
        del weights  # whoever asked adds them up
        here = (ids >= self._numbers.start) & (ids < self._numbers.stop)
        pairs = np.stack([here.nonzero()[0], ids[here] - self._numbers.start], axis=1)
        return self._held[block].terms(x, pairs, self._limits[block])
