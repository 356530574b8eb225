"""Products with stored weights."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from penstock.backend.base import DeviceWeight
from penstock.weights.tensor import Weight


def matrix(weight: DeviceWeight) -> Tensor:
    """As its file holds it.  [out, in]"""
    return torch.from_numpy(Weight(weight.info).decode().copy()).double()


def vector(values: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(values.copy()).double()


def linear(x: Tensor, weight: DeviceWeight) -> Tensor:
    """x [rows, in] → [rows, out]"""
    return x @ matrix(weight).T


def grouped_linear(x: Tensor, weight: DeviceWeight, groups: int) -> Tensor:
    """Each group of columns with its own rows of the weight: x [rows, groups · in] → [rows, groups · out]"""
    parts = zip(x.chunk(groups, dim=1), matrix(weight).chunk(groups), strict=True)
    return torch.cat([part @ own.T for part, own in parts], dim=1)


def embedding(tokens: Tensor, weight: DeviceWeight) -> Tensor:
    """tokens [rows] → [rows, hidden]"""
    return matrix(weight)[tokens]
