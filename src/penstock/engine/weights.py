"""The weights of an engine while they are in memory, and the way there."""

import ctypes
import gc
import sys
from collections.abc import Callable

from penstock.engine.options import EngineOptions
from penstock.engine.storage import open_storage
from penstock.kernels import cpu
from penstock.model.model import DeepSeekV4
from penstock.weights.checkpoint import Checkpoint


class Loading:
    """How far the reading of weights is, in bytes."""

    def __init__(self, tell: Callable[[int, int], None] | None = None):
        self.done = self.total = 0
        self._tell = tell

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if self._tell is not None:
            self._tell(done, total)

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 0.0


class Weights:
    """A model that can run.  Made by reading what the plan wants in memory."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: EngineOptions,
        fingerprint: Callable[[], str],
        progress: Callable[[int, int], None],
    ):
        self._files = checkpoint.files
        self.storage = open_storage(checkpoint, cpu, options, fingerprint)
        try:
            self.model = DeepSeekV4(
                checkpoint,
                cpu,
                self.storage.experts,
                self.storage.dense,
                simulate_low_precision=options.simulate_low_precision,
                prefetch=options.prefetch == "auto",
            )
            self.storage.dense.load(progress)
        except BaseException:
            self.storage.close()  # nothing may be read to memory that goes away
            raise

    def close(self) -> None:
        self.storage.close()
        for file in self._files:
            file.expect_nothing()


def give_back_memory() -> None:
    """Lets the system have what has just been freed: the allocator would keep some of it for later."""
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)
