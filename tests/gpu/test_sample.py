"""Tokens chosen on the card are those that the CPU's sampler chooses from the same logits."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock.backend import open_backend
from penstock.backend.cuda.sample import CudaSampling, DeviceLogits
from penstock.engine.sampler import Sampler
from penstock.engine.sampling import Sampling
from penstock.errors import OptionError, PenstockError

HOST = open_backend("cpu", threads=2).sampling
VOCABULARY = 129280


def row(seed: int, spread: float = 3.0, size: int = VOCABULARY) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)


def samplers(prompt: list[int], size: int = VOCABULARY, **chosen: Any) -> tuple[Sampler, Sampler]:
    sampling = Sampling(**{"seed": 7, **chosen})
    return Sampler(sampling, prompt, size, HOST), Sampler(sampling, prompt, size, CudaSampling(HOST))


def card(logits: NDArray[np.float32]) -> Any:
    return DeviceLogits(torch.from_numpy(logits).cuda())


CHOICES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1},
    {"temperature": 0.3},
    {"temperature": 1, "top_k": 1},
    {"temperature": 1, "top_k": 40},
    {"temperature": 1.5, "top_k": 100000},
    {"temperature": 1, "top_p": 0.9},
    {"temperature": 1, "top_p": 0.0},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {"temperature": 1, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 500, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 1, "repetition_penalty": 1.3},
    {"temperature": 1, "presence_penalty": 0.7, "frequency_penalty": 0.4, "top_p": 0.9},
    {"temperature": 0, "repetition_penalty": 1.5, "logit_bias": {5: 4.0, 17: -100.0}},
]


@pytest.mark.parametrize("chosen", CHOICES, ids=str)
def test_the_same_tokens_and_probabilities(chosen: dict[str, Any]) -> None:
    host, device = samplers([3, 5, 9], **chosen)
    for step in range(25):
        logits = row(step, spread=2.0 + step % 3)
        wanted, found = host.sample(logits), device.sample(card(logits))
        assert found.token == wanted.token
        assert found.logprob == pytest.approx(wanted.logprob, abs=2e-6)


def test_rows_are_chosen_together_as_alone() -> None:
    sampling = CudaSampling(HOST)
    many = [Sampler(Sampling(seed=i, top_p=0.9), [], VOCABULARY, sampling) for i in range(40)]
    alone = [Sampler(Sampling(seed=i, top_p=0.9), [], VOCABULARY, HOST) for i in range(40)]
    rows = [card(row(i)) for i in range(40)]
    for one, logits in zip(many, rows, strict=True):
        one.start(logits)
    found = [one.sample(logits).token for one, logits in zip(many, rows, strict=True)]
    assert found == [one.sample(row(i)).token for i, one in enumerate(alone)]


def test_ties_go_to_the_lower_id() -> None:
    logits = np.zeros(VOCABULARY, np.float32)
    for chosen in ({"temperature": 0}, {"temperature": 1, "top_k": 3}, {"temperature": 1, "top_k": 1000}):
        host, device = samplers([], **chosen)
        for _ in range(5):
            assert device.sample(card(logits)).token == host.sample(logits).token


@pytest.mark.parametrize("size", [1, 7, 320, 4096, 129277, 600000])  # the last one fits in no shared memory
def test_other_vocabularies(size: int) -> None:
    host, device = samplers([], size, temperature=1, top_k=5, top_p=0.9)
    for step in range(10):
        logits = row(step, size=size)
        assert device.sample(card(logits)).token == host.sample(logits).token


class Allowing:
    """A constraint that allows some tokens."""

    def __init__(self, allowed: list[int]):
        self._allowed = np.array(allowed, np.int64)

    def mask(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        masked = np.full_like(logits, -np.inf)
        masked[self._allowed] = logits[self._allowed]
        return masked

    def bits(self, size: int) -> NDArray[np.uint32]:
        allowed = np.zeros(-(-size // 32) * 32, bool)
        allowed[self._allowed] = True
        return np.packbits(allowed, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        assert token in self._allowed


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_mask_holds(temperature: float) -> None:
    for one in (both := samplers([], temperature=temperature)):
        one.constraint = Allowing([4, 99, 100000, 129279])  # type: ignore[assignment]
    for step in range(20):
        logits = row(step)
        assert both[1].sample(card(logits)).token == both[0].sample(logits).token


def test_what_cannot_be_chosen_is_an_error() -> None:
    _, device = samplers([])
    bad = row(0)
    bad[100] = np.nan
    with pytest.raises(PenstockError, match="not finite"):
        device.sample(card(bad))
    device.constraint = Allowing([])  # type: ignore[assignment]
    with pytest.raises(OptionError, match="forbids every token"):
        device.sample(card(row(1)))


def test_tokens_can_be_read_where_they_were_chosen() -> None:
    """For a step that begins before the host has heard of them; what is no token is one that a step can read."""
    sampling = CudaSampling(HOST)
    many = [Sampler(Sampling(seed=i), [], VOCABULARY, sampling) for i in range(3)]
    rows = [row(i) for i in range(3)]
    rows[1][7] = np.nan
    for one, logits in zip(many, rows, strict=True):
        one.start(card(logits))
    choices = [one.choosing for one in many if one.choosing is not None]
    tokens = sampling.tokens(choices)
    assert tokens is not None
    assert tokens.tolist() == [max(0, choice.result().token) for choice in choices]
    assert choices[1].result().token == -1
    assert sampling.tokens(choices[1:]).tolist() == tokens.tolist()[1:]  # type: ignore[union-attr]
