"""What a token of an answer takes in the engine beside the model: sessions, steps, text, and drafts that are tried.

It is about the same for every model, so it is measured on the one that is always here.
"""

import random
import time
from statistics import fmean, median
from typing import Final, NamedTuple

from penstock.bench.imagined_layers import timed
from penstock.engine.engine import Engine
from penstock.engine.sampler import Sampler
from penstock.engine.sampling import Sampling
from penstock.pocket import pocket_path

TOKENS: Final = 64
ANSWERS: Final = 5
FIRST: Final = 8  # of them, before everything runs as usual
PROMPT: Final = 512  # tokens, which the draft block reads when it is first tried
SHORT: Final = 16


class Overhead(NamedTuple):
    """Seconds of a token, without those of the layers, of logits and of drawing a token from them; those more that
    drafts take, on the whole, at the beginning of an answer that nobody can guess; and those before the first token
    that an engine takes only once."""

    token: float
    drafts: float
    start: float


def token_overhead() -> list[float]:
    plain, drafting = zip(*((_answer("off"), _answer("auto")) for _ in range(ANSWERS)), strict=True)
    token = median(answer.token - answer.computed for answer in plain)
    drafts = median(answer.token for answer in drafting) - median(answer.token for answer in plain)
    start = plain[0].start  # the others find code and memory where the first one has left them
    return list(Overhead(max(0.0, token), max(0.0, drafts), start))


class _Answer(NamedTuple):
    """Seconds of a token, without drawing it, the first ones included, which are slower; of what a step computes as a
    rule; and of starting."""

    token: float
    computed: float
    start: float


def _answer(draft: str) -> _Answer:
    sampling, found, computed = Sampling(ignore_eos=True, seed=0), list[float](), list[float]()
    inside: list[float] = []
    with Engine(pocket_path(), memory=None, draft=draft, learn="off") as engine:
        prompt = random.Random(0).choices(range(engine.config.vocab_size), k=PROMPT)
        start = _start(engine, prompt[:SHORT])
        model = engine.runner.model
        for name in ("forward", "logits"):
            setattr(model, name, timed(getattr(model, name), inside))
        session = engine.session()
        sampler = Sampler(sampling, prompt, engine.config.vocab_size, engine.backend.sampling)
        steps = engine.generate(prompt, TOKENS, sampling, session)
        begin = time.perf_counter()
        for _ in steps:
            found.append(time.perf_counter() - begin)
            computed.append(sum(inside))
            assert session.last_logits is not None
            inside.clear()
            timed(sampler.sample, inside)(session.last_logits)
            found[-1] -= inside.pop()
            begin = time.perf_counter()
    return _Answer(fmean(found[1:]), median(computed[FIRST:]), start)


def _start(engine: Engine, prompt: list[int]) -> float:
    """Seconds that the first prompt takes longer than the next one."""
    taken: list[float] = []
    for _ in range(2):
        timed(lambda: list(engine.generate(prompt, 1)), taken)()
    return max(0.0, taken[0] - taken[1])
