"""The measurement: a prompt that grows from frontier to frontier, and some tokens decoded at each."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.backend.device import DeviceBackend, KernelTime
from penstock.bench.stopwatch import Stopwatch, watching
from penstock.bench.traffic import Part
from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.errors import OptionError

PROFILED: Final = 8  # tokens


@dataclass(frozen=True)
class Timing:
    """Some tokens, and the time they took.  The parts, "other" among them, add up to it."""

    tokens: int
    seconds: float
    parts: dict[Part, float]

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Trial:
    """One pass over one frontier: `prefill` from the frontier before to this one, then `decode` token by token."""

    context: int
    prefill: Timing
    decode: Timing
    kernels: tuple[KernelTime, ...] = ()  # of a decoded token on a device


def sweep(
    engine: Engine,
    frontiers: Sequence[int],
    decode: int,
    repeat: int = 1,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[Trial]:
    """Goes through all frontiers `repeat` times.  Token ids are random, and the same every time; on a device, where
    they stay, those that are decoded are the model's own.

    What was decoded at a frontier is taken back, so the prompt goes on as if it had not been.  `progress` is called
    with the number of tokens just processed.
    """
    if engine.options.max_rewind < decode:
        raise OptionError(f"max_rewind is {engine.options.max_rewind}, expected at least {decode}")
    ids = random.Random(seed).choices(range(engine.config.vocab_size), k=max(frontiers) + decode)
    warm = min(len(ids), engine.plan.chunk)
    engine.session().feed(
        ids[:warm], logits="none"
    )  # pages, threads and scratch are there before anything counts
    for _ in range(repeat):
        session = engine.session()
        for frontier in frontiers:
            with watching(engine.runner.model) as watch:
                prefill = _prefill(session, ids[session.position : frontier], watch, progress)
            if isinstance(engine.backend, DeviceBackend):
                yield _on_device(engine.backend, session, ids[frontier], decode, prefill, progress)
                continue
            with watching(engine.runner.model) as watch:
                decoded = _decode(session, ids[frontier : frontier + decode], watch, progress)
            session.rewind(decode)
            yield Trial(frontier, prefill, decoded)


def _on_device(
    device: DeviceBackend,
    session: Session,
    token: int,
    count: int,
    prefill: Timing,
    progress: Callable[[int], None],
) -> Trial:
    """Tokens as they are generated, one step begun before the token before it is here; then time by kernel, which
    costs time itself."""
    frontier, engine = session.position, session.engine

    def decode(count: int) -> Iterator[object]:
        yield from engine.generate([token], count, Sampling(temperature=0, ignore_eos=True), session)
        session.rewind(session.position - frontier)

    list(decode(min(count, PROFILED)))  # graphs are recorded
    begin = time.perf_counter()
    for _ in decode(count):
        progress(1)
    decoded = _timing(count, time.perf_counter() - begin, Stopwatch())
    profiled = min(count, PROFILED)
    found = device.profile(lambda: list(decode(profiled)))
    kernels = [
        KernelTime(name, round(launches / profiled), seconds / profiled) for name, launches, seconds in found
    ]
    return Trial(frontier, prefill, decoded, tuple(kernels))


def sweep_tokens(frontiers: Sequence[int], decode: int, repeat: int) -> int:
    """How many tokens a sweep reports to `progress`."""
    return repeat * (max(frontiers) + decode * len(frontiers))


def _prefill(session: Session, ids: list[int], watch: Stopwatch, progress: Callable[[int], None]) -> Timing:
    chunk = session.engine.plan.chunk
    begin = time.perf_counter()
    for start in range(0, len(ids), chunk):  # as the engine would cut it, for the sake of the progress
        part = ids[start : start + chunk]
        session.feed(part, logits="last" if start + chunk >= len(ids) else "none")
        progress(len(part))
    return _timing(len(ids), time.perf_counter() - begin, watch)


def _decode(session: Session, ids: list[int], watch: Stopwatch, progress: Callable[[int], None]) -> Timing:
    begin = time.perf_counter()
    for token in ids:
        session.feed([token], logits="last")
        progress(1)
    return _timing(len(ids), time.perf_counter() - begin, watch)


def _timing(tokens: int, seconds: float, watch: Stopwatch) -> Timing:
    parts = dict(watch.seconds)
    parts[Part.OTHER] = seconds - sum(parts.values())
    return Timing(tokens, seconds, {part: parts[part] for part in Part if part in parts})
