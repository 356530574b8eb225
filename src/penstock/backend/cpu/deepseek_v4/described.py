"""What is described to the native code once: structures with the addresses of weights and vectors."""

from ctypes import Structure, addressof

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import DeviceWeight
from penstock.backend.cpu.memory import Buffer
from penstock.backend.cpu.weights import CpuWeight


class Described:
    """A structure for the native code at `address`, and what must live as long as it does."""

    __slots__ = ("address", "kept", "structure")

    def __init__(self, structure: Structure, *kept: object):
        self.address, self.structure, self.kept = addressof(structure), structure, kept


def vector(values: NDArray[np.float32]) -> Buffer:
    return Buffer(np.ascontiguousarray(values, np.float32))


def weight_of(weight: DeviceWeight) -> CpuWeight:
    assert isinstance(weight, CpuWeight)
    return weight


def expect(good: bool, message: str) -> None:
    """Kernels check nothing, so whoever describes something to them says here what must hold."""
    if not good:
        raise ValueError(message)
