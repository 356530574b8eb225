"""Long steps of a narrow model with the published heads: against the CPU, short steps, and however they are cut."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock import Engine
from penstock.weights.synth import SynthPlan, write_synth
from penstock.weights.widths import FLASH, Width

Logits = NDArray[np.float32]
LENGTH, VOCABULARY = 700, 600


def narrow(folder: Path) -> Path:
    """Every kind of layer; the indexer leaves rows out from 260 tokens on."""
    base = replace(
        FLASH,
        hidden=512,
        heads=16,
        q_rank=256,
        o_groups=4,
        o_rank=256,
        experts=16,
        index_topk=64,
        context_length=4096,
    )
    width = Width(base, 5, 1, 256, lambda _: 0)
    config = width.config((0, 4, 128, 4, 128), 1, VOCABULARY)
    path = folder / "narrow.gguf"
    write_synth(SynthPlan("narrow", config, "q2", 0.0, 1, ()), path)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return narrow(tmp_path_factory.mktemp("narrow"))


@pytest.fixture(scope="module")
def cuda(path: Path) -> Iterator[Engine]:
    with Engine(path, device="cuda", context=2048) as engine:
        yield engine


def ids(count: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(2, VOCABULARY, count)]


def fed(engine: Engine, tokens: list[int], steps: list[int]) -> Logits:
    """Logits of all tokens, in steps of so many."""
    session, found, at = engine.session(), [], 0
    for count in steps:
        (part,) = engine.feed([(session, tokens[at : at + count])], logits="all")
        assert part is not None
        found.append(np.array(part))
        at += count
    return np.concatenate(found)


def errors(found: Logits, wanted: Logits) -> NDArray[np.float64]:
    """Largest difference of every row, as a share of the logits' range"""
    difference = np.abs(found.astype(np.float64) - wanted).max(axis=1)
    return np.asarray(difference / (wanted.max() - wanted.min()))


def test_prompts_are_read_in_long_steps(cuda: Engine) -> None:
    assert cuda.plan.chunk > 32


@pytest.mark.parametrize("against", ["cpu", "short"])
def test_logits(cuda: Engine, path: Path, against: str) -> None:
    """Choices are discrete: where two experts or two rows are equal but for rounding, a row may differ visibly."""
    tokens = ids(LENGTH)
    found = fed(cuda, tokens, [LENGTH])
    if against == "short":
        wanted = fed(cuda, tokens, [32] * (LENGTH // 32) + [LENGTH % 32])
    else:
        with Engine(path, device="cpu", context=2048, threads=4) as cpu:
            wanted = fed(cpu, tokens, [LENGTH])
    error = errors(found, wanted)
    same = (found.argmax(axis=1) == wanted.argmax(axis=1)).mean()
    print(
        f"long steps against {against}: median {np.median(error):.1e}, 90 % below {np.quantile(error, 0.9):.1e}, "
        f"most {error.max():.1e} of the range, same best {same:.4f}"
    )
    assert np.isfinite(error).all()
    assert np.median(error) < 1e-3
    assert same > 0.97


def test_the_same_bits_however_a_prompt_is_cut(cuda: Engine) -> None:
    tokens = ids(LENGTH, 2)
    whole = fed(cuda, tokens, [LENGTH])
    for steps in ([333, 367], [33, 64, 100, 129, 374]):
        np.testing.assert_array_equal(fed(cuda, tokens, steps), whole)


def test_the_same_bits_whatever_shares_a_step(cuda: Engine) -> None:
    prompts = [ids(count, count) for count in (40, 300, 211)]
    alone = [fed(cuda, prompt, [len(prompt)]) for prompt in prompts]
    together = cuda.feed([(cuda.session(), prompt) for prompt in prompts], logits="all")
    for found, wanted in zip(together, alone, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_going_on_after_a_long_step(cuda: Engine) -> None:
    """What it leaves behind is what short steps leave, within rounding; rewinding and forking are exact."""
    tokens = ids(500, 3)
    long, short = cuda.session(), cuda.session()
    long.feed(tokens[:480])
    for first in range(0, 480, 30):
        short.feed(tokens[first : first + 30])
    fork = long.fork()
    ends = [
        np.stack([np.array(session.feed([token])) for token in tokens[480:]])
        for session in (long, short, fork)
    ]
    assert np.median(errors(ends[0], ends[1])) < 4e-3
    np.testing.assert_array_equal(ends[0], ends[2])
    long.rewind(20)
    again = np.stack([np.array(long.feed([token])) for token in tokens[480:]])
    np.testing.assert_array_equal(again, ends[0])
