"""The whole published model on a GPU: loading, decoding at several contexts and with several sessions, prefill.

    python -m benchmarks.gpu --synth /dev/shm/q2.gguf [--layers 43] [--mix q2] [--cases decode,rows,prefill,profile]
    python -m benchmarks.gpu --model model.gguf

Weights are random, so numbers of tokens count, not what they say.  Decoding is `Engine.generate`, sampling included;
a session gets its past by filling its memory with random rows, which costs what a real past costs.  Every line is
JSON.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.weights.synth import plan_synth, write_synth


def say(case: str, **numbers: Any) -> None:
    print(json.dumps({"case": case, **numbers}), flush=True)


def aged(engine: Engine, position: int) -> Session:
    """A session that stands at `position`, with random rows behind it."""
    session = engine.session()
    rng, states = np.random.default_rng(position), engine.states
    for number, series in enumerate(engine.layout.series):
        first, last = series.live(position, max(0, position - engine.layout.max_rewind))
        if last > first:
            block = rng.standard_normal((min(last - first, 256), series.width))
            rows = np.resize(block, (last - first, series.width))
            states.write(
                session.state.slot, number, first, rows.astype("f4" if series.dtype == "f32" else "f2")
            )
    session.state.position = position
    session.state.floor = max(0, position - engine.layout.max_rewind)
    session._tokens = [int(i) for i in rng.integers(2, engine.config.vocab_size, position)]
    return session


def decode(engine: Engine, context: int, tokens: int) -> None:
    session = aged(engine, context)
    times, before = [], time.perf_counter()
    sampling = Sampling(temperature=1.0, seed=1, ignore_eos=True)
    for _ in engine.generate([5], tokens, sampling, session):
        now = time.perf_counter()
        times.append(now - before)
        before = now
    each = statistics.median(times[8:])
    say("decode", context=context, tokens_per_second=round(1 / each, 1), ms=round(each * 1e3, 3))


def card_alone(engine: Engine, context: int) -> None:
    """The graphs of a decoded token one after the other, with nothing of the host in between."""
    import torch

    session = aged(engine, context)
    for _ in range(3):
        engine._feed([(session, [5])], "kept")
    model: Any = engine.runner.model
    graphs = [g for (count, _), g in model.ops._graphs.items() if count == 1]
    graphs += [g for (count, *_), g in model.head._graphs.items() if count == 1]
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


def rows(engine: Engine, count: int, context: int, steps: int) -> None:
    sessions = [aged(engine, context + i) for i in range(count)]
    times = []
    for step in range(steps):
        before = time.perf_counter()
        engine._feed([(session, [5 + (step * 37 + i) % 1000]) for i, session in enumerate(sessions)], "kept")
        np.asarray(sessions[0].last_logits)[:1]
        times.append(time.perf_counter() - before)
    each = statistics.median(times[4:])
    say(
        "rows", rows=count, context=context, tokens_per_second=round(count / each, 1), ms=round(each * 1e3, 3)
    )


def prefill(engine: Engine, length: int) -> None:
    ids = np.random.default_rng(length).integers(2, engine.config.vocab_size, length).tolist()
    engine.session().feed(ids[:64])  # kernels compiled, graphs recorded
    engine.session().feed(ids[:64])
    session = engine.session()
    before = time.perf_counter()
    session.feed(ids)
    seconds = time.perf_counter() - before
    say("prefill", tokens=length, tokens_per_second=round(length / seconds), seconds=round(seconds, 3))


def profile(engine: Engine, context: int) -> None:
    """Time by kernel of a decoded token, from the driver's own records."""
    import torch
    from torch.profiler import ProfilerActivity

    session, tokens = aged(engine, context), 8
    engine._feed([(session, [5])], "kept")
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as records:
        for _ in range(tokens):
            engine._feed([(session, [5])], "kept")
            np.asarray(session.last_logits)[:1]
    found = sorted(records.key_averages(), key=lambda event: -event.self_device_time_total)
    for event in found[:16]:
        say(
            "kernel",
            name=event.key[:48],
            launches=event.count / tokens,
            ms=round(event.self_device_time_total / tokens / 1e3, 4),
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path)
    parser.add_argument("--synth", type=Path, help="write a synthetic model there first, unless it is there")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--mix", default="q2")
    parser.add_argument("--cases", default="decode,rows,prefill,profile")
    parser.add_argument("--contexts", default="2048,8192,65536")
    parser.add_argument("--counts", default="1,4,8,32")
    parser.add_argument("--prefill", default="2048")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    path = options.model or options.synth
    if options.synth is not None and not options.synth.exists():
        begin = time.perf_counter()
        write_synth(plan_synth(width="flash", layers=options.layers, mix=options.mix), options.synth)
        say("synth", seconds=round(time.perf_counter() - begin, 1), bytes=options.synth.stat().st_size)
    cases = options.cases.split(",")
    contexts = [int(c) for c in options.contexts.split(",")]
    begin = time.perf_counter()
    engine = Engine(
        path, device=options.device, context=max(contexts) + 4096, sessions=32, draft="off", load=False
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
    if "decode" in cases:
        for context in contexts:
            decode(engine, context, options.tokens)
            card_alone(engine, context)
    if "rows" in cases:
        for count in (int(c) for c in options.counts.split(",")):
            rows(engine, count, 2048, 24)
    if "profile" in cases:
        profile(engine, contexts[0])
    if "prefill" in cases:
        for length in (int(p) for p in options.prefill.split(",")):
            prefill(engine, length)
    engine.close()


if __name__ == "__main__":
    main()
