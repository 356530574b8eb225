"""How fast a model is on two processes against one.

    python -m benchmarks.cluster                     # a full-width file of four layers, one thread per process
    python -m benchmarks.cluster --model FILE --chunks 128,256 --repeat 3
    python -m benchmarks.cluster --only stages,turns --repeat 5
    python -m benchmarks.cluster --model FILE --only stages --device cuda --vram 60GiB     # both share one card
    python -m benchmarks.cluster --only experts --worker-device cuda          # its share in the memory of a card

How fast one process with one thread reads a prompt in pieces of several sizes, and so two stages at most; then a head
and a worker with one thread each, connected over loopback: as two stages, as two stages whose layers take turns, and
with the worker computing experts.  Decoding alone, two sessions at once (tokens of both, through the scheduler), and
a prompt of 2,048 tokens.

On processors, stages are measured turn about with one process, and with two at the same time that have nothing to do
with each other: all that two stages could ever do on this machine, in these minutes.  What others have disturbed is
measured again.  The file has a small vocabulary, so that the head of the model is to its four layers as it is to the
published model's 43.
"""

import argparse
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.children import ROOT
from benchmarks.machine import Neighbours, sentence
from penstock.cluster.attendance import TICK
from penstock.engine.engine import Engine
from penstock.engine.requests import Failed, Request
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.steps import Step
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import plan_synth, write_synth

PROMPT: Final = 2048
DECODED: Final = 48
VOCABULARY: Final = 8192
GREEDY: Final = Sampling(temperature=0, ignore_eos=True)
CASES: Final = ("pieces", "stages", "turns", "experts")
PIECES: Final = (128, 256, 341, 512)
QUIET: Final = 0.1  # cores that others may keep busy
TRIALS: Final = 3  # of a measurement, at most, as long as they are busier
ALONE: Final[dict[str, Any]] = {"threads": 1, "memory": None, "learn": "off"}


def worker(model: Path, port: int, *flags: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock", "worker", "-m", str(model), "--join", f"127.0.0.1:{port}"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        [*command, "--threads", "1", "--memory", "none", "--once", *flags],
        env=environment,
        stderr=subprocess.DEVNULL,
    )


@contextmanager
def staged(
    model: Path, stages: int, *flags: str, **options: Any
) -> Iterator[tuple[Engine, list[subprocess.Popen[bytes]]]]:
    """A head with its workers, one at least; flags: theirs."""
    engine = Engine(model, cluster="127.0.0.1:0", stages=stages, load=False, **ALONE, **options)
    assert engine.machines is not None
    port = engine.machines.head.address[1]
    workers = [worker(model, port, *flags) for _ in range(max(1, stages - 1))]
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


def prefill(engine: Engine, tokens: int = PROMPT) -> float:
    """Tokens per second of a prompt."""
    ids = [7 + 3 * n % (engine.config.vocab_size - 16) for n in range(tokens)]
    session, begin = engine.session(), time.perf_counter()
    session.feed(ids)
    return tokens / (time.perf_counter() - begin)


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


Found = dict[str, list[float]]  # of each thing that is measured: tokens per second, by repetition
MEASURES: Final[dict[str, Callable[[Engine], float]]] = {
    "decode": decode,
    "decode, two sessions": decode_two,
    f"prefill {PROMPT}": prefill,
}


Measures = Mapping[str, Callable[[], float]]  # of one thing, by name: tokens per second
DECODE, TWO_SESSIONS, PREFILL = MEASURES


def of(engine: Engine) -> Measures:
    """Everything, of one engine whose weights have been read and whose memory is real."""
    decode(engine)
    prefill(engine, 256)
    return {name: partial(measure, engine) for name, measure in MEASURES.items()}


def measured(things: Mapping[str, Measures], repeat: int, children: Sequence[int]) -> dict[str, Found]:
    """Of each, turn about: the cores of a machine are not always equally fast.  children: processes that take part"""
    found: dict[str, Found] = {what: {name: [] for name in each} for what, each in things.items()}
    for _, name in product(range(repeat), MEASURES):
        speeds, busy = _undisturbed(
            {what: each[name] for what, each in things.items() if name in each}, children
        )
        said = ", ".join(f"{what} {speed:.2f}" for what, speed in speeds.items())
        print(f"  {name}: {said} ({busy:.2f} cores busy with other things)", flush=True)
        for what, speed in speeds.items():
            found[what][name].append(speed)
    return found


def _undisturbed(
    ways: Mapping[str, Callable[[], float]], children: Sequence[int]
) -> tuple[dict[str, float], float]:
    """What was found while others kept fewest cores busy, and how many."""
    trials = []
    for _ in range(TRIALS):
        others = Neighbours(children)
        speeds = {what: measure() for what, measure in ways.items()}
        trials.append((others.cores(), speeds))
        if trials[-1][0] < QUIET:
            break
    busy, speeds = min(trials, key=lambda each: each[0])
    return speeds, busy


def computing(engine: Engine, measure: Callable[[Engine], float]) -> list[str]:
    """For which share of the time that something takes each stage computes."""

    def busy() -> list[float]:
        time.sleep(2 * TICK)  # until workers have told
        return [member["busy_seconds"] for member in engine.stats()["cluster"]["members"]]

    before, begin = busy(), time.perf_counter()
    measure(engine)
    seconds = time.perf_counter() - begin
    return [f"{(late - early) / seconds:.0%}" for early, late in zip(before, busy(), strict=True)]


class Companion:
    """One engine in a process of its own, which measures when it is told to."""

    def __init__(self, model: Path, where: Mapping[str, Any]):
        command = [sys.executable, "-m", "benchmarks.cluster", "--model", str(model), "--alone"]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        }
        self.process = subprocess.Popen(
            [*command, "--device", where["device"]],  # all of its memory: one process need not share
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.measures: Measures = {name: partial(self._ask, name) for name in MEASURES}

    def _ask(self, name: str) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def __enter__(self) -> "Companion":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def answer(model: Path, where: dict[str, Any]) -> None:
    """What a companion does."""
    with Engine(model, context=PROMPT + 512, sessions=2, **where, **ALONE) as engine:
        measures = of(engine)
        for line in sys.stdin:
            print(measures[line.strip()](), flush=True)


def together(first: Measures, second: Measures) -> Measures:
    """Both at the same time: their tokens together."""

    def both(name: str) -> float:
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(second[name])
            return first[name]() + other.result()

    return {name: partial(both, name) for name in (DECODE, PREFILL)}


@contextmanager
def beside(model: Path, where: dict[str, Any]) -> Iterator[tuple[dict[str, Measures], list[int]]]:
    """What is measured turn about with stages, and processes that take part: none where they have a card's memory."""
    if where["device"] != "cpu":
        yield {}, []
        return
    with (
        Engine(model, context=PROMPT + 512, sessions=2, **where, **ALONE) as engine,
        Companion(model, where) as other,
    ):
        one = of(engine)
        yield (
            {"one process": one, "two processes by themselves": together(one, other.measures)},
            [other.process.pid],
        )


def pieces(model: Path, where: dict[str, Any]) -> None:
    """How long steps of one process take by their rows, and what follows for two stages that do the same work: a
    prompt in p pieces keeps them busy for p steps and one of them idle for one, or half of one by turns."""
    print("one process, a prompt of", PROMPT, "in pieces of:")
    whole: dict[int, float] = {}  # by number of pieces: seconds of all of them
    for rows in PIECES:
        with Engine(model, context=PROMPT + 512, prefill_chunk=rows, **where, **ALONE) as engine:
            prefill(engine, 64)
            whole[PROMPT // rows] = PROMPT / prefill(engine)
        print(f"  {rows}: {PROMPT / whole[PROMPT // rows]:.1f} tokens per second", flush=True)
    for name, behind in (("plain stages", 1.0), ("by turns", 0.5)):
        best, count = max(
            (2 * min(whole.values()) / (each * (1 + behind / p)), p) for p, each in whole.items()
        )
        print(f"  two stages, {name}: at most {best:.2f} times as fast, in {count} pieces")


def show(what: str, found: Found, one: Found) -> None:
    """Medians; and those of the ratios to one process in the same repetition."""

    def against(name: str, other: str) -> str:
        ratios = [f / o for f, o in zip(found[name], one[other], strict=True)]
        spread = f" ({min(ratios):.2f} - {max(ratios):.2f})" if len(ratios) > 1 else ""
        return f"{median(ratios):.2f}{spread}"

    print(f"{what}:", {name: round(median(values), 2) for name, values in found.items()})
    if found is not one:
        print("  against one process:", {name: against(name, name) for name in found})
    if TWO_SESSIONS in found:
        print("  two sessions against one alone:", against(TWO_SESSIONS, DECODE), flush=True)


def speed(
    model: Path,
    cases: Sequence[str],
    chunks: Sequence[int | None],
    boundary: str,
    repeat: int,
    where: dict[str, str],
    worker_device: str | None,
) -> None:
    """where: options that say which device; worker_device: of an expert worker, if it is another"""
    shared: dict[str, Any] = {"context": PROMPT + 512, "boundary": boundary, "sessions": 2, **where}
    flags = [word for name, value in where.items() for word in (f"--{name}", value)]
    one: Found = {}
    if where["device"] != "cpu" or "experts" in cases:
        with Companion(model, where) as alone:
            one = measured({"one process": alone.measures}, repeat, [alone.process.pid])["one process"]
        show("one process", one, one)
    if "pieces" in cases:
        pieces(model, where)
    quarter = open_checkpoint(model).config.layer_count // 4
    layers = {"stages": f"0:{2 * quarter}", "turns": f"0:{quarter},{2 * quarter}:{3 * quarter}"}
    for case, chunk in product([each for each in layers if each in cases], chunks):
        with ExitStack() as stack:
            engine, workers = stack.enter_context(
                staged(model, 2, *flags, prefill_chunk=chunk, layers=layers[case], **shared)
            )
            others, children = stack.enter_context(beside(model, where))
            children += [each.pid for each in workers]
            what = f"two stages, the head with layers {layers[case]}"
            found = measured({what: of(engine), **others}, repeat, children)
            one = found.get("one process", one)
            for each in reversed(found):
                show(each, found[each], one)
            print(f"  pieces of {engine.stepper.piece(PROMPT)}")
            for name in list(MEASURES)[1:]:
                print(f"  computing, {name}:", " and ".join(computing(engine, MEASURES[name])), flush=True)
    if "experts" in cases:
        on = flags if worker_device is None else ["--device", worker_device]
        with staged(model, 1, "--experts", "auto", *on, **shared) as (engine, workers):
            while not any("experts" in each for each in engine.stats()["cluster"]["members"]):
                time.sleep(0.1)
            what = "a head and an expert worker"
            show(what, measured({what: of(engine)}, repeat, [each.pid for each in workers])[what], one)
            print("  taken:", engine.stats()["cluster"]["members"][-1]["experts_taken"])


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
    parser.add_argument("--only", default=",".join(CASES), help=f"of {', '.join(CASES)}")
    parser.add_argument("--device", default="cpu", help="of both processes")
    parser.add_argument("--worker-device", help="of the expert worker (default: as --device)")
    parser.add_argument("--vram", help="of the device's memory, for each of two stages")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    named = {"device": given.device, "vram": given.vram}
    where = {name: value for name, value in named.items() if value is not None}
    if given.alone:
        answer(given.model, where)
        return 0
    print(sentence())
    chunks = [None if each == "auto" else int(each) for each in given.chunks.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        model = given.model
        if model is None:
            model = Path(folder, "flash4.gguf")
            write_synth(plan_synth(width="flash", layers=4, vocab=VOCABULARY, mix="q2"), model)
        cases = given.only.split(",")
        speed(model, cases, chunks, given.boundary, given.repeat, where, given.worker_device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
