"""What happens when workers are killed, hang, stall or are cut off, while requests go on.

    python -m benchmarks.cluster_kills               # 200 times
    python -m benchmarks.cluster_kills --count 20 --seed 7
    python -m benchmarks.cluster_kills --layers 0:1,4:5      # of the head: layers that take turns

The pocket model on three stages, four requests at a time, two of them drawn with a seed.  Something happens to one
worker at a random moment of that.  Every answer must be that of one process, or the beginning of it and an error
within the time that the cluster promises; the head goes on, and whoever is started again or comes back by itself
brings everything back.
"""

import argparse
import gc
import logging
import os
import queue
import random
import signal
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any, Final

from benchmarks.cluster import ALONE
from penstock.engine.engine import Engine
from penstock.engine.options import EngineOptions
from penstock.engine.requests import Failed, Request
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step
from penstock.errors import PenstockError
from penstock.pocket import pocket_path
from penstock.weights.opening import open_checkpoint

STAGES: Final = 3
TIMEOUT: Final = 3.0  # seconds of silence after which a stage counts as lost
BOUND: Final = 4 * TIMEOUT  # in which every request must have ended then, also on a busy machine
ANSWER: Final = 40  # tokens
BACK: Final = 60.0  # seconds in which all is as before
PROMPTS: Final = [[*range(100 + 5 * n, 180 + 45 * n)] for n in range(4)]
CHOSEN: Final = [Sampling(temperature=n % 2, seed=n, top_p=0.9, ignore_eos=True) for n in range(4)]

# Processes that have loaded torch already: a worker is there in a moment.
_started = get_context("forkserver")


def _work(port: int) -> None:
    from penstock.cluster.worker import StageWorker

    options = EngineOptions(**ALONE)
    where = ("127.0.0.1", port, lambda _: None)
    StageWorker(open_checkpoint(pocket_path()), options, *where).run(once=True)


def worker(port: int) -> BaseProcess:
    process = _started.Process(target=_work, args=(port,), daemon=True)
    process.start()
    return process


class Trial:
    """A cluster, and what was heard of it."""

    def __init__(self, rng: random.Random, layers: str):
        self._rng = rng
        with Engine(pocket_path(), context=512, **ALONE) as engine:
            self._expected = [
                [step.token for step in engine.generate(prompt, ANSWER, chosen)]
                for prompt, chosen in zip(PROMPTS, CHOSEN, strict=True)
            ]
        terms: dict[str, Any] = {"context": 512, "boundary": "f32", "cluster_timeout": TIMEOUT, "sessions": 4}
        self.engine = Engine(
            pocket_path(),
            cluster="127.0.0.1:0",
            stages=STAGES,
            load=False,
            layers=layers,
            prefill_chunk=64,
            **terms,
            **ALONE,
        )
        assert self.engine.machines is not None
        self.head = self.engine.machines.head
        self._port = self.head.address[1]
        self._workers = [worker(self._port) for _ in range(STAGES - 1)]
        self.engine.load()
        self.counts: Counter[str] = Counter()  # answered, ended, wrong; and what was done
        self.slowest = self.slowest_back = 0.0  # seconds
        begin = time.perf_counter()
        self._load(lambda: None)
        self._usual = time.perf_counter() - begin  # seconds of the load, when nothing happens

    def happen(self, number: int) -> None:
        """Something, to one worker."""
        victim = self._rng.randrange(len(self._workers))
        name = self._rng.choice(("kill", "hang", "stall", "cut", "cut data"))
        when, pid = self._rng.random() * self._usual, self._workers[victim].pid
        assert pid is not None
        waking = threading.Timer(self._rng.random() * 2 * TIMEOUT, os.kill, (pid, signal.SIGCONT))

        def strike() -> None:
            time.sleep(when)
            if name == "kill":
                self._workers[victim].kill()
            elif name in ("hang", "stall"):
                os.kill(pid, signal.SIGSTOP)
                if name == "stall":
                    waking.start()
            elif name == "cut":
                _cut_control(self.engine, victim)
            else:
                _cut_data(self._rng)

        wrong = self.counts["wrong"]
        self._load(strike)
        if self.counts["wrong"] > wrong:
            print(f"number {number} was a {name} of worker {victim} after {when:.2f} s", flush=True)
        self.counts[name] += 1
        if name in ("kill", "hang"):
            self._workers[victim].kill()
            self._workers[victim].join()
            self._workers[victim] = worker(self._port)
        elif name == "stall":
            waking.join()
        self._come_back()

    def _load(self, strike: Any) -> None:
        """Requests, and what strikes meanwhile."""
        scheduler = Scheduler(self.engine, parallel=4)
        heard: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in PROMPTS]
        for prompt, chosen, each in zip(PROMPTS, CHOSEN, heard, strict=True):
            scheduler.submit(Request(prompt, ANSWER, chosen, each.put))
        scheduler.start()
        strike()
        begin = time.perf_counter()
        for tokens, each in zip(self._expected, heard, strict=True):
            found, error = _answer(each, begin + BOUND)
            if error is None and found == tokens:
                self.counts["answered"] += 1
            elif isinstance(error, PenstockError) and found == tokens[: len(found)]:
                self.counts["ended with an error"] += 1
            else:
                self.counts["wrong"] += 1
                print(f"wrong: {error!r}, {found} for {tokens}", flush=True)
        self.slowest = max(self.slowest, time.perf_counter() - begin)
        scheduler.stop()

    def _come_back(self) -> None:
        begin = time.perf_counter()
        while not self.engine.stats()["cluster"]["up"]:
            if time.perf_counter() - begin > BACK:
                raise TimeoutError(f"the cluster does not come back: {self.head.why()}")
            time.sleep(0.02)
        self.slowest_back = max(self.slowest_back, time.perf_counter() - begin)

    def close(self) -> None:
        self.engine.close()
        for each in self._workers:
            each.join(BACK)
            if each.is_alive():
                self.counts["wrong"] += 1
                print("a worker does not end with its head", flush=True)
                each.kill()


def _cut_control(engine: Engine, victim: int) -> None:
    """The control connection of one worker ends, on both sides."""
    assert engine.machines is not None
    members = engine.machines.head.members
    if victim < len(members):  # else it is away already
        members[victim].control.close()


def _cut_data(rng: random.Random) -> None:
    """One of the connections that activations take ends, on both sides: none of Python's, so one of gloo's."""
    own = {each.fileno() for each in gc.get_objects() if type(each) in (socket.socket, ssl.SSLSocket)}
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if int(name) in own or not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
            with suppress(OSError):
                if copy.family == socket.AF_INET and copy.getpeername():
                    found.append(copy)
                    continue
            copy.close()
    if found:
        with suppress(OSError):
            rng.choice(found).shutdown(socket.SHUT_RDWR)
    for each in found:
        each.close()


def _answer(heard: "queue.SimpleQueue[Any]", until: float) -> tuple[list[int], BaseException | None]:
    found: list[int] = []
    while True:
        try:
            update = heard.get(timeout=max(0.0, until - time.perf_counter()))
        except queue.Empty:
            return found, TimeoutError(f"not ended {BOUND:.0f} seconds after it happened")
        if isinstance(update, Failed):
            return found, update.error
        if isinstance(update, Step):
            found.append(update.token)
            if update.finish_reason is not None:
                return found, None


def kills(count: int, seed: int, layers: str) -> int:
    """How many things went wrong."""
    begin = time.perf_counter()
    trial = Trial(random.Random(seed), layers)
    try:
        for number in range(count):
            trial.happen(number)
            if (number + 1) % 20 == 0 or number + 1 == count:
                seconds = time.perf_counter() - begin
                print(f"{number + 1} in {seconds:.0f} s: {_said(trial.counts)}; at most {trial.slowest:.1f} s until "
                      f"all had ended, {trial.slowest_back:.1f} s more until all was back", flush=True)  # fmt: skip
    finally:
        trial.close()
    return trial.counts["wrong"]


def _said(counts: Counter[str]) -> str:
    names: Sequence[str] = ("answered", "ended with an error", "wrong", *sorted(counts))
    return ", ".join(f"{counts[name]} {name}" for name in dict.fromkeys(names))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", default="auto", help="of the head")
    given = parser.parse_args()
    logging.getLogger("penstock").setLevel(logging.ERROR)  # every loss is said otherwise
    _started.set_forkserver_preload(["torch", "penstock.cluster.worker", "penstock.weights.opening"])
    wrong = kills(given.count, given.seed, given.layers)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
