"""The speed to expect of a model in a GPU's own memory, where each token reads its weights once."""

from typing import NamedTuple

from penstock.backend.device import DeviceBackend
from penstock.storage.plan import Plan


class OnDevice(NamedTuple):
    """tokens_per_second: as fast as the memory lets it be."""

    memory_bandwidth: float  # bytes per second
    tokens_per_second: float


def expect_on_device(plan: Plan, backend: DeviceBackend) -> OnDevice:
    memory = backend.speeds().memory
    return OnDevice(memory, memory / sum(plan.read_by_token.values()))
