"""What a token of an answer takes in the engine beside the model: sessions, steps and text.

It is the same for every model, so it is measured on the one that is always here.
"""

import time
from statistics import median
from typing import Final

from penstock.bench.imagined_layers import timed
from penstock.engine.engine import Engine
from penstock.engine.sampler import Sampler
from penstock.engine.sampling import Sampling
from penstock.pocket import pocket_path

TOKENS: Final = 64
FIRST: Final = 8  # of them, before everything runs as usual
PROMPT: Final = (0, 17, 4)


def token_overhead() -> float:
    """Seconds, without those of the layers, of logits and of drawing a token from them."""
    sampling, found = Sampling(ignore_eos=True), list[float]()
    inside: list[float] = []
    with Engine(pocket_path(), memory=None, draft="off", learn="off") as engine:
        model = engine.runner.model
        for name in ("forward", "logits"):
            setattr(model, name, timed(getattr(model, name), inside))
        session = engine.session()
        sampler = Sampler(sampling, PROMPT, engine.config.vocab_size, engine.backend.sampling)
        steps = engine.generate(PROMPT, TOKENS, sampling, session)
        begin = time.perf_counter()
        for _ in steps:
            found.append(time.perf_counter() - begin - sum(inside))
            assert session.last_logits is not None
            inside.clear()
            timed(sampler.sample, inside)(session.last_logits)
            found[-1] -= inside.pop()
            begin = time.perf_counter()
    return max(0.0, median(found[FIRST:]))
