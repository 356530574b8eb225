"""What every part of the model is built from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.experts.dense import DenseWeights
from penstock.experts.store import ExpertStore
from penstock.kernels.ops import Ops
from penstock.model.precision import Precision
from penstock.model.rope import Frequencies
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.config import ModelConfig
from penstock.weights.tensor import Weight


@dataclass(frozen=True)
class Blueprint:
    """The weights, the kernels, the experts' store, and the settings that all layers share."""

    checkpoint: Checkpoint
    ops: Ops
    experts: ExpertStore
    dense: DenseWeights
    precision: Precision
    compressed: Frequencies  # of layers with a compressor

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    @property
    def simulate(self) -> bool:
        return self.precision.simulate

    def weight(self, name: str) -> Weight:
        """A matrix, wherever it is kept."""
        return self.dense.weight(name)

    def vector(self, name: str) -> Tensor:
        """A small tensor, decoded once and kept."""
        return torch.from_numpy(self.checkpoint.weight(name).decode().copy())
