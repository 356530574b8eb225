"""What happens when workers are killed, hang or are cut off, while requests go on.

    python -m benchmarks.cluster_kills               # 200 times
    python -m benchmarks.cluster_kills --count 20 --seed 7

The pocket model on three stages.  Every answer must be that of one process, or an error within the time that the
cluster promises; the head goes on, and a worker that is started again brings everything back.
"""

import argparse
import queue
import random
import signal
import sys
import time
from typing import Any, Final

from benchmarks.cluster import GREEDY, staged, worker
from penstock.engine.engine import Engine
from penstock.engine.requests import Failed, Request
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step
from penstock.errors import PenstockError
from penstock.pocket import pocket_path

TIMEOUT: Final = 4.0  # seconds of silence after which a stage counts as lost
BOUND: Final = 30.0  # and in which a request must have ended then, on a busy machine


def kills(count: int, seed: int) -> int:
    """How many things went wrong."""
    rng, wrong, ended, answered = random.Random(seed), 0, 0, 0
    prompts = [[*range(100 + 5 * n, 140 + 5 * n)] for n in range(4)]
    with Engine(pocket_path(), threads=1, context=512, memory=None, learn="off") as engine:
        expected = [[step.token for step in engine.generate(each, 16, GREEDY)] for each in prompts]
    options = {"context": 512, "boundary": "f32", "cluster_timeout": TIMEOUT, "sessions": 4}
    with staged(pocket_path(), 3, **options) as (engine, workers):
        assert engine.machines is not None
        port, slowest = engine.machines.head.address[1], 0.0
        for number in range(count):
            _wait_up(engine)
            scheduler = Scheduler(engine, parallel=4)
            heard: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in prompts]
            for prompt, each in zip(prompts, heard, strict=True):
                scheduler.submit(Request(prompt, 16, GREEDY, each.put))
            scheduler.start()
            time.sleep(rng.random() * 0.3)
            victim, how = rng.randrange(len(workers)), rng.choice(("kill", "hang", "cut"))
            if how == "cut":
                _cut(engine, victim)
            else:
                workers[victim].send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            begin = time.perf_counter()
            for tokens, each in zip(expected, heard, strict=True):
                found, error = _answer(each)
                if error is None and found == tokens:
                    answered += 1
                elif isinstance(error, PenstockError) and found == tokens[: len(found)]:
                    ended += 1
                else:
                    wrong += 1
                    print(f"kill {number}: {error!r}, {found} for {tokens}", flush=True)
            slowest = max(slowest, time.perf_counter() - begin)
            scheduler.stop()
            if how != "cut":  # who was cut off comes again by himself
                workers[victim].kill()
                workers[victim].wait()
                workers[victim] = worker(pocket_path(), port)
            if (number + 1) % 20 == 0:
                print(f"{number + 1} kills: {answered} answered, {ended} ended with an error, {wrong} wrong, "
                      f"slowest end {slowest:.1f} s", flush=True)  # fmt: skip
        _wait_up(engine)
    return wrong


def _cut(engine: Engine, victim: int) -> None:
    """The connection of one worker ends, on both sides."""
    assert engine.machines is not None
    members = engine.machines.head.members
    if victim < len(members):  # else it is away already
        members[victim].control.close()


def _answer(heard: "queue.SimpleQueue[Any]") -> tuple[list[int], BaseException | None]:
    found: list[int] = []
    while True:
        try:
            update = heard.get(timeout=BOUND)
        except queue.Empty:
            return found, TimeoutError(f"nothing for {BOUND} seconds")
        if isinstance(update, Failed):
            return found, update.error
        if isinstance(update, Step):
            found.append(update.token)
            if update.finish_reason is not None:
                return found, None


def _wait_up(engine: Engine) -> None:
    end = time.monotonic() + 120
    while not engine.stats()["cluster"]["up"]:
        if time.monotonic() > end:
            raise TimeoutError(f"the cluster does not come back: {engine.stats()['cluster']['waiting_for']}")
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    return int(kills(given.count, given.seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
