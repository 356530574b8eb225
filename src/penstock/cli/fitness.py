"""How a model would run on this machine: whether it fits, and how fast it should be."""

import os
import sys
from functools import cache, partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, NamedTuple

from penstock.backend import open_backend
from penstock.bench.expected import expect_here
from penstock.engine.options import EngineOptions
from penstock.engine.planning import make_engine_plan
from penstock.errors import BudgetError, OptionError, PenstockError
from penstock.machine.disk_speed import measured
from penstock.machine.memory import read_memory
from penstock.sizes import size, speed
from penstock.storage.plan import Plan
from penstock.storage.read_speed import ReadSpeed
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint

CONTEXT: Final = 4096  # tokens that a model is judged with
LATENCY: Final = 1e-4  # seconds of a read, as good disks have it
MEMORY_SPEED: Final = 1e10  # bytes per second of a disk that is not asked for anything
SAMPLE: Final = 256 << 20  # bytes to measure a disk with where there is no large file


class Fitness(NamedTuple):
    """fits: "memory", "streams", or "no"; tokens_per_second: None where the disk's speed is not known."""

    fits: str
    note: str
    tokens_per_second: float | None = None
    smallest: int | None = None  # the least memory that it runs in
    whole: int | None = None  # memory that holds all of it

    @property
    def words(self) -> str:
        if self.tokens_per_second is None:
            return self.note
        return f"{self.note}, about {speed(self.tokens_per_second)} tokens/s"


class Machine:
    """This machine as a plan sees it; what has to be measured is measured once, when it is first needed."""

    def __init__(self) -> None:
        self.options = EngineOptions(memory="auto", draft="off")
        self.backend = open_backend("cpu", self.options.thread_count)
        self.memory = read_memory()
        self.say = cache(partial(print, file=sys.stderr))  # the same once, however many models are judged

    @cache  # noqa: B019 – as long as the command
    def disk_speed(self, folder: Path) -> float | None:
        """Bytes per second of the disk under a folder; None where it cannot be measured."""
        try:
            return measured(folder).bytes_per_second
        except OptionError:  # never measured, and a folder is no file to read from
            return _measured_with_a_sample(folder)
        except PenstockError:
            return None

    def judge(self, path: Path, folder: Path) -> Fitness:
        """What would become of the model at `path`, whose weights need not be there, on the disk of a folder."""
        checkpoint = self.options.with_draft(open_checkpoint(path))
        try:
            plan, _ = make_engine_plan(checkpoint, self.options, self.backend, CONTEXT, self.memory)
        except BudgetError:
            least = self._plan(checkpoint, "direct", 1 << 60).smallest
            return Fitness("no", f"needs {size(least)} of memory at least", smallest=least)
        whole = self._plan(checkpoint, "mmap", None).total
        fits = {"smallest": plan.smallest, "whole": whole}
        if plan.mode != "direct":
            return Fitness("memory", "fits in memory", self._speed(checkpoint, plan, MEMORY_SPEED), **fits)
        note = f"streams, {plan.hit_rate():.0%} of experts in memory"
        disk = self.disk_speed(folder)
        if disk is None:
            return Fitness("streams", f"{note}; the disk is not measured", None, **fits)
        return Fitness("streams", note, self._speed(checkpoint, plan, disk), **fits)

    def _speed(self, checkpoint: Checkpoint, plan: Plan, disk: float) -> float:
        """Tokens per second once the cache is full."""
        found = expect_here(checkpoint, plan, self.backend, disk=ReadSpeed(disk, LATENCY), say=self.say)
        return found.steady.per_second

    def _plan(self, checkpoint: Checkpoint, streaming: str, memory: int | None) -> Plan:
        chosen = EngineOptions(draft="off", streaming=streaming, memory=memory)
        return make_engine_plan(checkpoint, chosen, self.backend, CONTEXT, self.memory)[0]


def _measured_with_a_sample(folder: Path) -> float | None:
    try:
        with NamedTemporaryFile(dir=folder, prefix=".penstock-") as sample:
            for _ in range(SAMPLE >> 20):
                sample.write(os.urandom(1 << 20))
            sample.flush()
            os.fsync(sample.fileno())
            return measured(Path(sample.name)).bytes_per_second
    except (OSError, PenstockError):
        return None
