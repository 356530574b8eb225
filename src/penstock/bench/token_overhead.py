"""What a token of an answer takes in the engine beside the model: sessions, steps, text, and drafts that are tried.

It is about the same for every model, so it is measured on the one that is always here.
"""

import random
import time
from statistics import fmean, median
from typing import Final

from penstock.bench.imagined_layers import timed
from penstock.engine.engine import Engine
from penstock.engine.sampler import Sampler
from penstock.engine.sampling import Sampling
from penstock.pocket import pocket_path

TOKENS: Final = 64
ANSWERS: Final = 3
FIRST: Final = 8  # of them, before everything runs as usual
PROMPT: Final = 512  # tokens, which the draft block reads when it is first tried


def token_overhead() -> list[float]:
    """Seconds, without those of the layers, of logits and of drawing a token from them; and those more that drafts
    take, on the whole, at the beginning of an answer that nobody can guess."""
    plain, drafting = zip(*((_seconds("off"), _seconds("auto")) for _ in range(ANSWERS)), strict=True)
    usual = median(median(seconds[FIRST:]) for seconds in plain)
    # Of whole answers the quickest are compared: others on the machine make some of them slower.
    drafts = min(fmean(seconds[1:]) for seconds in drafting) - min(fmean(seconds[1:]) for seconds in plain)
    return [max(0.0, usual), max(0.0, drafts)]


def _seconds(draft: str) -> list[float]:
    """By token, all but what a step of one row computes and what drawing from it takes."""
    sampling, found, computed = Sampling(ignore_eos=True, seed=0), list[float](), list[float]()
    inside: list[float] = []
    with Engine(pocket_path(), memory=None, draft=draft, learn="off") as engine:
        model = engine.runner.model
        for name in ("forward", "logits"):
            setattr(model, name, timed(getattr(model, name), inside))
        session = engine.session()
        prompt = random.Random(0).choices(range(engine.config.vocab_size), k=PROMPT)
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
    usual = median(computed[FIRST:])
    return [seconds - usual for seconds in found]
