"""The whole published model on a GPU: loading, decoding at several contexts and with several sessions, prefill.

    python -m benchmarks.gpu --synth /dev/shm/q2.gguf [--layers 43] [--mix q2] [--cases decode,rows,prefill]
    python -m benchmarks.gpu --model model.gguf --report

decode   one stream of `Engine.generate`, sampling included; and the graphs alone, without the host
rows     several streams in one step, as the scheduler runs them
prefill  a prompt in one go; of each length the first, for which memory is taken, and then the next one
host     what the host does for a token, piece by piece, with steps begun early and without
server   one stream through the server, HTTP and all, beside the engine alone
memory   (always) what was planned, and how much more the driver counts than before the engine was opened

Weights are random, so numbers of tokens count, not what they say.  A session gets its past by filling its memory with
random rows, which costs what a real past costs.  Every line is JSON; `--report` adds a table of each case's time by
kernel (`benchmarks/gpu_profile.py`), with the weights that it reads and the share of the card's bandwidth.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import gpu_profile
from benchmarks.gpu_server import served
from penstock import Engine
from penstock.backend.cuda.profile import record
from penstock.backend.device import DeviceBackend
from penstock.backend.state import StatePool
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.engine.steps import Generation
from penstock.weights.synth import plan_synth, write_synth

SAMPLING = Sampling(temperature=1.0, seed=1, ignore_eos=True)
WARM = 8  # steps until graphs are recorded and the card is at its speed


def say(case: str, **numbers: Any) -> None:
    print(json.dumps({"case": case, **numbers}), flush=True)


def aged(engine: Engine, position: int) -> Session:
    """A session that stands at `position`, with random rows behind it."""
    session = engine.session()
    rng, states = np.random.default_rng(position), engine.states
    assert isinstance(states, StatePool)
    for number, series in enumerate(engine.states.layout.series):
        first, last = series.live(position, max(0, position - engine.states.layout.max_rewind))
        if last > first:
            block = rng.standard_normal((min(last - first, 256), series.width))
            rows = np.resize(block, (last - first, series.width))
            states.write(
                session.state.slot, number, first, rows.astype("f4" if series.dtype == "f32" else "f2")
            )
    session.state.position = position
    session.state.floor = max(0, position - engine.states.layout.max_rewind)
    session._tokens = [int(i) for i in rng.integers(2, engine.config.vocab_size, position)]
    return session


def card_used() -> int:
    """Bytes, by the driver's own count, of everybody who uses the card."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def decode(engine: Engine, context: int, tokens: int) -> float:
    """Seconds a token"""
    session = aged(engine, context)
    times, before = [], time.perf_counter()
    for _ in engine.generate([5], tokens, SAMPLING, session):
        now = time.perf_counter()
        times.append(now - before)
        before = now
    each = statistics.median(times[WARM:])
    say("decode", context=context, tokens_per_second=round(1 / each, 1), ms=round(each * 1e3, 3))
    return statistics.mean(times[WARM:])


def card_alone(engine: Engine, context: int) -> None:
    """The graphs of a decoded token one after the other, with nothing of the host in between."""
    import torch

    session = aged(engine, context)
    for _ in range(3):
        engine.stepper.feed([(session, [5])], "kept")
    model: Any = engine.runner.model
    graphs = [g for (count, *_), g in model.ops._graphs.items() if count == 1][-1:]
    graphs += [g for (count, *_), g in model.head._graphs.items() if count == 1][-1:]
    times = []
    for _ in range(20):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for graph in graphs:
            graph.run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    say("card alone", context=context, ms=round(statistics.median(times), 3))


class Streams:
    """Answers that advance together, a token each in a step, as those of the scheduler do."""

    def __init__(self, engine: Engine, count: int, context: int, ahead: bool = True):
        self.engine, self.ahead = engine, ahead
        self.answers: list[tuple[Session, Generation]] = []
        for number in range(count):
            session = aged(engine, context + number)
            self.answers.append((session, engine.generation(session, session.tokens, None, SAMPLING)))
        self.tokens = [5] * count

    def step(self) -> dict[str, float]:
        """Seconds of the host by what it did."""
        times = [time.perf_counter()]

        def tick() -> None:
            times.append(time.perf_counter())

        found = self.engine.stepper.advance(
            [(session, [token], 1) for (session, _), token in zip(self.answers, self.tokens, strict=True)]
        )
        tick()
        generations = [generation for _, generation in self.answers]
        for generation, logits in zip(generations, found, strict=True):
            assert logits is not None
            generation.start(logits[-1])
        tick()
        if self.ahead:
            self.engine.stepper.run_ahead(generations)
        tick()
        generations[0].settle()
        tick()
        self.tokens = [
            generation.next(logits[-1]).token
            for generation, logits in zip(generations, found, strict=True)
            if logits is not None
        ]
        tick()
        names = ("step", "choice", "next step", "waiting", "token and text")
        return {name: late - early for name, early, late in zip(names, times, times[1:], strict=False)}


def rows(engine: Engine, count: int, context: int, steps: int) -> None:
    streams, times = Streams(engine, count, context), []
    for _ in range(steps):
        before = time.perf_counter()
        streams.step()
        times.append(time.perf_counter() - before)
    each = statistics.median(times[WARM:])
    say(
        "rows", rows=count, context=context, tokens_per_second=round(count / each, 1), ms=round(each * 1e3, 3)
    )


def host(engine: Engine, context: int, steps: int) -> None:
    """Microseconds a token: with steps begun early all but the waiting happens while the card computes."""
    for ahead in (False, True):
        streams = Streams(engine, 1, context, ahead)
        begin = time.perf_counter()
        found = [streams.step() for _ in range(steps)]
        each = (time.perf_counter() - begin) / steps
        pieces = {name: round(1e6 * statistics.median(f[name] for f in found[WARM:])) for name in found[0]}
        say("host", ahead=ahead, context=context, us=pieces, ms=round(each * 1e3, 3))


def prefill(engine: Engine, length: int) -> None:
    ids = np.random.default_rng(length).integers(2, engine.config.vocab_size, length).tolist()
    engine.session().feed(ids[:64])  # kernels compiled, graphs recorded
    engine.session().feed(ids[:64])
    for time_before in (0, 1):
        session = engine.session()
        before = time.perf_counter()
        session.feed(ids)
        seconds = time.perf_counter() - before
        say(
            "prefill", tokens=length, prompts_before=time_before, tokens_per_second=round(length / seconds),
            seconds=round(seconds, 3),
        )  # fmt: skip


def server(engine: Engine, path: Path, device: str, length: int, tokens: int) -> None:
    alone = decode(engine, length, tokens)
    engine.park()  # two models may not fit
    through = served(path, device, engine.context, length, tokens)
    say(
        "server",
        context=length,
        tokens_per_second=round(1 / through, 1),
        ms=round(through * 1e3, 3),
        share_of_engine=round(alone / through, 3),
    )


# ── time by kernel ────────────────────────────────────────────────────────────────────────────────────────


def profile_steps(engine: Engine, count: int, context: int, repeats: int = 8) -> list[gpu_profile.Line]:
    """Of a decoded token of each of so many streams."""
    config, model = engine.config, _model(engine)
    model.ops._graphs.clear()  # so that the next step is launched, not repeated
    model.head._graphs.clear()
    streams = Streams(engine, count, context, ahead=False)
    read = gpu_profile.experts_read(count, config.experts_used, config.experts)
    with gpu_profile.launches(read) as launched:
        streams.step()
    streams.ahead = True
    for _ in range(3):
        streams.step()

    def work() -> None:
        for _ in range(repeats):
            streams.step()

    return gpu_profile.by_kernel(record(work), launched, repeats)


def profile_prefill(engine: Engine, length: int) -> list[gpu_profile.Line]:
    ids = np.random.default_rng(length).integers(2, engine.config.vocab_size, length).tolist()
    with gpu_profile.launches(engine.config.experts) as launched:
        ran = record(lambda: engine.session().feed(ids))
    lines = gpu_profile.by_kernel(ran, launched, 1)
    # Many rows use every expert, so the products of a chunk read all layers once.
    chunks = -(-length // engine.plan.chunk)
    layers = sum(info.nbytes for name, info in engine.checkpoint.index.items() if name.startswith("blk."))
    for line in lines:
        if line.label.startswith("prefill_product"):
            line.nbytes = chunks * layers
    return lines


def _model(engine: Engine) -> Any:
    return engine.runner.model


class Report:
    """Time by kernel of every case, as JSON and as tables."""

    def __init__(self, engine: Engine):
        assert isinstance(engine.backend, DeviceBackend)
        self.bandwidth = engine.backend.speeds().memory
        self.console = Console(width=110, highlight=False)
        say("bandwidth", gigabytes_per_second=round(self.bandwidth / 1e9))

    def add(self, title: str, lines: list[gpu_profile.Line]) -> None:
        seconds, nbytes = sum(line.seconds for line in lines), sum(line.nbytes for line in lines)
        for line in lines[:24]:
            say(
                "kernel", of=title, name=line.label, launches=round(line.launches, 1),
                ms=round(line.seconds * 1e3, 4), megabytes=round(line.nbytes / 1e6, 1),
            )  # fmt: skip
        say(
            "floor", of=title, ms=round(seconds * 1e3, 3), megabytes=round(nbytes / 1e6),
            share_of_floor=round(nbytes / self.bandwidth / seconds, 3),
        )  # fmt: skip
        self.console.print(gpu_profile.table(title, lines, self.bandwidth))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--synth", type=Path, help="write a synthetic model there first, unless it is there")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--mix", default="q2")
    parser.add_argument("--cases", default="decode,rows,prefill", help="also host, server")
    parser.add_argument("--contexts", default="2048,8192,65536")
    parser.add_argument("--counts", default="1,4,8,32", help="of rows")
    parser.add_argument("--prefill", default="2048,8192,65536", help="lengths of prompts")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--report", action="store_true", help="time by kernel of every case, as tables")
    options = parser.parse_args()
    path = options.model or options.synth
    if options.synth is not None and not options.synth.exists():
        begin = time.perf_counter()
        write_synth(plan_synth(width="flash", layers=options.layers, mix=options.mix), options.synth)
        say("synth", seconds=round(time.perf_counter() - begin, 1), bytes=options.synth.stat().st_size)
    cases = options.cases.split(",")
    contexts, counts, lengths = (
        [int(number) for number in numbers.split(",")]
        for numbers in (options.contexts, options.counts, options.prefill)
    )
    before = card_used()
    begin = time.perf_counter()
    engine = Engine(
        path,
        device=options.device,
        context=max(*contexts, *lengths) + 4096,
        sessions=32,
        draft="off",
        load=False,
    )
    say("open", seconds=round(time.perf_counter() - begin, 2), vram_planned=engine.plan.total)
    begin = time.perf_counter()
    engine.load()
    seconds, nbytes = (
        time.perf_counter() - begin,
        sum(info.nbytes for info in engine.checkpoint.index.values()),
    )
    say("load", seconds=round(seconds, 2), gigabytes_per_second=round(nbytes / seconds / 1e9, 1))
    begin = time.perf_counter()
    engine.session().feed([5, 6, 7])
    say("first step", seconds=round(time.perf_counter() - begin, 2))
    report = Report(engine) if options.report else None

    def shown(title: str, lines: Callable[..., list[gpu_profile.Line]], *of: int) -> None:
        if report is not None:
            report.add(title, lines(engine, *of))

    if "decode" in cases:
        for context in contexts:
            decode(engine, context, options.tokens)
            card_alone(engine, context)
            shown(f"decode at {context:,}", profile_steps, 1, context)
    if "rows" in cases:
        for count in counts:
            rows(engine, count, contexts[0], 32)
            shown(f"{count} rows", profile_steps, count, contexts[0])
    if "prefill" in cases:
        for length in lengths:
            prefill(engine, length)
            shown(f"prefill of {length:,}", profile_prefill, length)
    if "host" in cases:
        host(engine, contexts[0], options.tokens)
    say("memory", planned=engine.plan.total, driver=card_used() - before)
    if "server" in cases:
        server(engine, path, options.device, contexts[0], options.tokens)
    engine.close()


if __name__ == "__main__":
    main()
