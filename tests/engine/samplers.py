"""Samplers that need no engine."""

from collections.abc import Sequence

from penstock.backend import open_backend
from penstock.engine.sampler import Sampler
from penstock.engine.sampling import Sampling

OPS = open_backend("cpu", threads=1).sampling


def sampler_of(sampling: Sampling, prompt: Sequence[int], vocab_size: int) -> Sampler:
    return Sampler(sampling, prompt, vocab_size, OPS)
