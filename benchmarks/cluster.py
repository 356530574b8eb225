"""How fast a model is on two stages against one process, and what happens when workers are killed.

    python -m benchmarks.cluster                     # a full-width file of four layers, one thread per stage
    python -m benchmarks.cluster --model FILE --chunks 128,256 --repeat 3
    python -m benchmarks.cluster --kills 200         # workers are killed, stopped and cut off under load

Speed: one process with one thread, then a head and a worker with one thread each, connected over loopback.  Decoding
alone, two sessions at once (tokens of both, through the scheduler), and a prompt of 2,048 tokens.  The file has a
small vocabulary, so that the head of the model is to its four layers as it is to the published model's 43.

Kills: the pocket model on three stages.  Requests go on all the time, and every answer must be that of one process or
an error within the time that the cluster promises.
"""

import argparse
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.children import ROOT
from penstock.engine.engine import Engine
from penstock.engine.requests import Failed, Request
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step
from penstock.errors import PenstockError
from penstock.pocket import pocket_path
from penstock.weights.synth import plan_synth, write_synth

PROMPT: Final = 2048
DECODED: Final = 48
VOCABULARY: Final = 8192
GREEDY: Final = Sampling(temperature=0, ignore_eos=True)
TIMEOUT: Final = 4.0  # seconds of silence after which a stage counts as lost, under kills
BOUND: Final = 30.0  # and in which a request must have ended then, on a busy machine


def worker(model: Path, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock", "worker", "-m", str(model), "--join", f"127.0.0.1:{port}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        [*command, "--threads", "1", "--memory", "none", "--once"], env=environment, stderr=subprocess.DEVNULL
    )


@contextmanager
def staged(
    model: Path, stages: int, **options: Any
) -> Iterator[tuple[Engine, list[subprocess.Popen[bytes]]]]:
    """A head with its workers."""
    engine = Engine(
        model,
        cluster="127.0.0.1:0",
        stages=stages,
        threads=1,
        memory=None,
        load=False,
        learn="off",
        **options,
    )
    assert engine.machines is not None
    workers = [worker(model, engine.machines.head.address[1]) for _ in range(stages - 1)]
    try:
        engine.load()
        yield engine, workers
    finally:
        engine.close()
        for each in workers:
            each.send_signal(signal.SIGCONT)
            try:
                each.wait(30)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()


# ── speed ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def prefill(engine: Engine, vocabulary: int) -> float:
    """Tokens per second of a prompt."""
    ids = [7 + 3 * n % (vocabulary - 16) for n in range(PROMPT)]
    session, begin = engine.session(), time.perf_counter()
    session.feed(ids)
    return PROMPT / (time.perf_counter() - begin)


def decode(engine: Engine) -> float:
    """Tokens per second of one session."""
    steps = engine.generate([5, 6, 7, 8], DECODED, GREEDY)
    next(steps)
    begin = time.perf_counter()
    count = sum(1 for _ in steps)
    return count / (time.perf_counter() - begin)


def decode_two(engine: Engine) -> float:
    """Tokens per second of two sessions together, while both decode."""
    scheduler = Scheduler(engine, parallel=2)
    heard: queue.SimpleQueue[tuple[int, float, Any]] = queue.SimpleQueue()
    for number in (0, 1):
        prompt = [5 + number, 6, 7, 8]

        def emit(update: Any, number: int = number) -> None:
            heard.put((number, time.perf_counter(), update))

        scheduler.submit(Request(prompt, DECODED, GREEDY, emit))
    scheduler.start()
    times: dict[int, list[float]] = {0: [], 1: []}
    while any(len(each) < DECODED for each in times.values()):
        number, when, update = heard.get(timeout=600)
        if isinstance(update, Failed):
            raise update.error
        if isinstance(update, Step):
            times[number].append(when)
    scheduler.stop()
    begin, end = max(each[0] for each in times.values()), min(each[-1] for each in times.values())
    return sum(begin < when <= end for each in times.values() for when in each) / (end - begin)


def measured(engine: Engine, repeat: int) -> dict[str, float]:
    vocabulary = engine.config.vocab_size
    decode(engine)  # weights are read, memory becomes real
    prefill(engine, vocabulary)
    return {
        "decode": median(decode(engine) for _ in range(repeat)),
        "decode, two sessions": median(decode_two(engine) for _ in range(repeat)),
        f"prefill {PROMPT}": median(prefill(engine, vocabulary) for _ in range(repeat)),
    }


def speed(model: Path, chunks: Sequence[int | None], boundary: str, repeat: int) -> None:
    shared = {"context": PROMPT + 512, "boundary": boundary, "sessions": 2}
    with Engine(model, threads=1, memory=None, learn="off", context=PROMPT + 512, sessions=2) as engine:
        one = measured(engine, repeat)
    print("one process:", {name: round(value, 2) for name, value in one.items()}, flush=True)
    for chunk in chunks:
        with staged(model, 2, prefill_chunk=chunk, layers="0:2", **shared) as (engine, _):
            two = measured(engine, repeat)
            print(f"two stages, chunks of {engine.plan.chunk}:", {n: round(v, 2) for n, v in two.items()})
        ratios = {name: round(two[name] / one[name], 2) for name in one}
        ratios["two sessions against one alone"] = round(two["decode, two sessions"] / one["decode"], 2)
        print("  ratio:", ratios, flush=True)


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def kills(count: int, seed: int) -> int:
    """Kills workers (SIGKILL) and lets them hang (SIGSTOP) while requests go on; how many things went wrong."""
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
            victim, how = rng.randrange(len(workers)), rng.choice((signal.SIGKILL, signal.SIGSTOP))
            workers[victim].send_signal(how)
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
            if how == signal.SIGSTOP:
                workers[victim].kill()
            workers[victim].wait()
            workers[victim] = worker(pocket_path(), port)
            if (number + 1) % 20 == 0:
                print(f"{number + 1} kills: {answered} answered, {ended} ended with an error, {wrong} wrong, "
                      f"slowest end {slowest:.1f} s", flush=True)  # fmt: skip
        _wait_up(engine)
    return wrong


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
    parser.add_argument(
        "--model", type=Path, help="a GGUF file with at least four layers (default: made for it)"
    )
    parser.add_argument("--chunks", default="auto", help="sizes of prefill steps on two stages, e.g. 128,256")
    parser.add_argument("--boundary", default="bf16", choices=("bf16", "f32"))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--kills", type=int, default=0, help="only kill workers, so many times")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.kills:
        return int(kills(given.kills, given.seed) > 0)
    chunks = [None if each == "auto" else int(each) for each in given.chunks.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        model = given.model
        if model is None:
            model = Path(folder, "flash4.gguf")
            write_synth(plan_synth(width="flash", layers=4, vocab=VOCABULARY, mix="q2"), model)
        speed(model, chunks, given.boundary, given.repeat)
    return 0


if __name__ == "__main__":
    sys.exit(main())
