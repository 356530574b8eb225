"""Answers without a model: tokens drawn at random, as far as a constraint lets them."""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from penstock.engine.constraint import Constraint, Constraints
from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.pocket import pocket_path
from penstock.tokenizer import Tokenizer
from tests.engine.samplers import sampler_of

WEARY = 40  # tokens after which an answer hurries to its end


@cache
def tokenizer() -> Tokenizer:
    return Engine(pocket_path(), context=256).tokenizer


@cache
def constraints() -> Constraints:
    return Constraints(tokenizer(), tokenizer().eos_ids)


@cache
def _ending() -> NDArray[np.float32]:
    """What logits are raised by at the end: what closes something, above all the end itself."""
    codec = tokenizer()
    raised = np.zeros(codec.vocab_size, np.float32)
    for text in ('"', "}", "]", "</", '"}', '"]', "}}", "]}", "0", "null"):
        for token in codec.encode(text)[:1]:
            raised[token] = 30
    raised[[id for id in range(codec.vocab_size) if codec.is_special(id)]] = 40
    return raised


def answer(held: Constraint, seed: int, most: int = 2_000, favourite: Sequence[int] = ()) -> list[int]:
    """The tokens of a random answer, without the EOS.  favourite: tokens that come first, wherever they may."""
    codec, chance = tokenizer(), np.random.default_rng(seed)
    sampler = sampler_of(Sampling(seed=seed), [], codec.vocab_size)
    sampler.constraint = held
    tokens: list[int] = []
    while len(tokens) < most:
        logits = chance.normal(0, 3, codec.vocab_size).astype(np.float32)
        if len(tokens) > WEARY:
            logits += _ending()
        else:
            logits[list(favourite)] += 100
        token = sampler.sample(logits).token
        if token in codec.eos_ids:
            return tokens
        tokens.append(token)
    raise AssertionError(f"no end after {most} tokens: {codec.decode(tokens)[-300:]!r}")
