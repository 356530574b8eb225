"""What sampling asks of logits that a device has computed."""

import numpy as np
from numpy.typing import NDArray

from penstock.backend.base import Logits, Sampling


class DeviceSampling(Sampling):
    """Questions are answered by the host, where the logits come to then.  A device that chooses there overrides
    `start` and `tokens`."""

    def __init__(self, host: Sampling):
        self._host = host

    def top(self, logits: Logits) -> tuple[int, float]:
        return self._host.top(np.asarray(logits))

    def log_sum(self, logits: Logits, highest: float) -> float:
        return self._host.log_sum(np.asarray(logits), highest)

    def draw(
        self, logits: Logits, highest: float, temperature: float, top_k: int, top_p: float, min_p: float,
        chance: float,
    ) -> int:  # fmt: skip
        return self._host.draw(np.asarray(logits), highest, temperature, top_k, top_p, min_p, chance)

    def best(self, logits: Logits, count: int) -> NDArray[np.int64]:
        return self._host.best(np.asarray(logits), count)
