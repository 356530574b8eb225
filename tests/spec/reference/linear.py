"""Products with stored weights.  A slab of rows is decoded, used and dropped: never a whole matrix."""

import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.weights.tensor import Weight

SLAB: Final = 1 << 22  # weights decoded at a time: 16 MiB of float32 scratch

# Mapped weights are read-only on purpose and nothing here writes to them.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def _rows(weight: Weight, start: int, stop: int) -> Tensor:
    return torch.from_numpy(weight.rows(start, stop))


def linear(x: Tensor, weight: Weight) -> Tensor:
    out, columns = weight.shape
    if weight.in_place:
        return F.linear(x, _rows(weight, 0, out))
    result = x.new_empty(x.shape[0], out)
    step = max(1, SLAB // columns)
    for start in range(0, out, step):
        stop = min(out, start + step)
        result[:, start:stop] = F.linear(x, _rows(weight, start, stop))
    return result


def linears(x: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
    return [linear(x, weight) for weight in weights]


def grouped_linear(x: Tensor, weight: Weight, groups: int) -> Tensor:
    out = weight.shape[0] // groups
    result = x.new_empty(x.shape[0], groups * out)
    for group in range(groups):
        start, stop = group * out, (group + 1) * out
        result[:, start:stop] = F.linear(x[:, group], _rows(weight, start, stop))
    return result


def embed(tokens: Tensor, weight: Weight) -> Tensor:
    return torch.from_numpy(np.concatenate([weight.rows(token, token + 1) for token in tokens.tolist()]))
