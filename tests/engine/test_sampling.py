"""From logits to tokens."""

import itertools
import math
import sys
from collections import Counter
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.engine import stops
from penstock.engine.sampling import Sampling
from penstock.engine.stops import StopStrings
from penstock.errors import OptionError, PenstockError
from tests.engine.samplers import OPS, sampler_of

LOGITS = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))


def draws(sampling: Sampling, count: int = 4000, logits: NDArray[np.float32] = LOGITS) -> Counter[int]:
    """Independent draws: a fresh sampler each, so that penalties see nothing."""
    from dataclasses import replace

    return Counter(
        sampler_of(replace(sampling, seed=seed), [], len(logits)).sample(logits).token
        for seed in range(count)
    )


def test_greedy_takes_the_lower_id_on_ties() -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0], np.float32)
    assert sampler_of(Sampling(temperature=0), [], 4).sample(logits).token == 1


def test_temperature_one_draws_the_model_distribution() -> None:
    found = draws(Sampling())
    for token, share in enumerate([0.4, 0.3, 0.15, 0.1, 0.05]):
        assert found[token] / 4000 == pytest.approx(share, abs=0.025)


def test_low_temperature_sharpens() -> None:
    assert draws(Sampling(temperature=0.25), 500)[0] > 350
    assert draws(Sampling(temperature=0.01), 200)[0] == 200


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=2), {0, 1}),
        (Sampling(top_p=0.69), {0, 1}),
        (Sampling(top_p=0.71), {0, 1, 2}),
        (Sampling(top_p=0.0), {0}),
        (Sampling(min_p=0.3), {0, 1, 2}),
        (Sampling(min_p=1.0), {0}),
        (Sampling(top_k=4, top_p=0.8, min_p=0.5), {0, 1}),
        (Sampling(logit_bias={0: -100, 4: 100}), {4}),
    ],
)
def test_filters(sampling: Sampling, kept: set[int]) -> None:
    assert set(draws(sampling, 600)) == kept


def test_penalties() -> None:
    logits = np.array([2.0, 1.9, -1.0], np.float32)
    greedy = Sampling(temperature=0, repetition_penalty=1.2)
    assert sampler_of(greedy, [0], 3).sample(logits).token == 1  # the prompt counts
    assert (
        sampler_of(Sampling(temperature=0, presence_penalty=5.0), [0], 3).sample(logits).token == 0
    )  # here it does not
    sampler = sampler_of(Sampling(temperature=0, frequency_penalty=0.06), [], 3)
    assert [sampler.sample(logits).token for _ in range(6)] == [0, 0, 1, 0, 1, 0]
    sampler = sampler_of(Sampling(temperature=0, presence_penalty=0.5), [], 3)
    assert [sampler.sample(logits).token for _ in range(3)] == [0, 1, 0]


def test_repetition_penalty_also_pushes_negative_logits_down() -> None:
    logits = np.array([-1.0, -1.5], np.float32)
    assert sampler_of(Sampling(temperature=0, repetition_penalty=2.0), [0], 2).sample(logits).token == 1


def test_seeds_repeat_and_differ() -> None:
    def run(seed: int | None) -> list[int]:
        sampler = sampler_of(Sampling(seed=seed), [], 5)
        return [sampler.sample(LOGITS).token for _ in range(40)]

    assert run(3) == run(3)
    assert run(3) != run(4)
    assert run(None) != run(None)
    assert run(-1) == run((1 << 64) - 1)  # any whole number is a seed


def test_logprobs_are_the_models_own() -> None:
    sampler = sampler_of(Sampling(temperature=0.3, top_k=1, logit_bias={2: 9.0}, top_logprobs=3), [], 5)
    token, logprob, top = sampler.sample(LOGITS)
    assert token == 2
    assert logprob == pytest.approx(math.log(0.15), abs=1e-6)
    assert [t for t, _ in top] == [0, 1, 2]
    assert [p for _, p in top] == pytest.approx([math.log(p) for p in (0.4, 0.3, 0.15)], abs=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("repetition_penalty", 0),
        ("presence_penalty", math.nan),
        ("seed", 1.5),
        ("stop", "END"),
        ("stop", [""]),
        ("logit_bias", {1: math.nan}),
        ("top_logprobs", -1),
    ],
)
def test_impossible_values_are_refused(field: str, value: object) -> None:
    with pytest.raises(OptionError, match=field):
        Sampling(**{field: value})  # type: ignore[arg-type]


def test_bad_bias_and_bad_logits() -> None:
    with pytest.raises(OptionError, match="token 9 is outside the vocabulary"):
        sampler_of(Sampling(logit_bias={9: 1.0}), [], 5)
    with pytest.raises(PenstockError, match="not finite"):
        sampler_of(Sampling(), [], 2).sample(np.array([np.nan, 1.0], np.float32))


def kept_by_the_book(
    logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[set[int], set[int]]:
    """Tokens that the filters surely leave, and those they may leave where rounding decides: sorted out in full."""
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order].astype(np.float64) - logits[order[0]]) / temperature)
    if top_k:
        order, weights = order[:top_k], weights[:top_k]

    def left(slack: float) -> set[int]:
        reached = (
            np.cumsum(weights) - weights < (top_p + slack) * weights.sum() if top_p < 1 else weights > -1
        )
        kept = reached & (weights >= min_p - slack)
        kept[0] = True
        return set(order[kept].tolist())

    return left(-1e-5), left(1e-5)


@given(
    size=st.sampled_from([1, 5, 63, 64, 1000, 5000]),
    spread=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 40, 4000]),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.02, 0.5, 1.0]),
    seed=st.integers(0, 99),
)
def test_filters_by_the_book(
    size: int, spread: float, temperature: float, top_k: int, top_p: float, min_p: float, seed: int
) -> None:
    """Large vocabularies go through buckets instead of a sort; what is left is the same."""
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    _, highest = OPS.top(logits)
    surely, perhaps = kept_by_the_book(logits, temperature, top_k, top_p, min_p)
    found = {
        OPS.draw(logits, highest, temperature, top_k, top_p, min_p, chance)
        for chance in np.linspace(0, 1, 200, endpoint=False)
    }
    assert found <= perhaps
    if len(perhaps) < 6:
        weights = {token: math.exp((float(logits[token]) - highest) / temperature) for token in perhaps}
        total = sum(weights.values())
        assert {token for token in surely if weights[token] > 0.02 * total} <= found


def test_best_and_top_of_a_vocabulary() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 64, 129_280):
        logits = rng.integers(-50, 50, size).astype(np.float32)  # many ties
        order = np.argsort(-logits, kind="stable")
        assert OPS.top(logits) == (int(order[0]), float(logits[order[0]]))
        for count in (1, 7, 300):
            assert OPS.best(logits, count).tolist() == order[:count].tolist()
        exact = logits.max() + np.log(np.exp(logits.astype(np.float64) - logits.max()).sum())
        assert OPS.log_sum(logits, float(logits.max())) == pytest.approx(exact, abs=1e-6)


def test_rows_together_are_what_each_is_alone() -> None:
    rng = np.random.default_rng(1)
    for size in (1, 100, 40_000):
        rows = [rng.normal(size=size).astype(np.float32) for _ in range(5)]
        wanted = []
        for row in rows:
            token, highest = OPS.top(row)
            wanted.append((token, highest, OPS.log_sum(row, highest)))
        assert OPS.tops(rows) == wanted
    rows[2][7] = np.nan
    assert [token >= 0 for token, _, _ in OPS.tops(rows)] == [True, True, False, True, True]


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e6])
def test_extreme_temperatures(temperature: float) -> None:
    token = sampler_of(Sampling(temperature=temperature, seed=1), [], 5).sample(LOGITS).token
    assert token == 0 if temperature < 1 else token in range(5)


@given(
    text=st.text(alphabet="abE ", max_size=40),
    stops=st.lists(st.text(alphabet="abE", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 40), max_size=10),
)
def test_stop_strings_work_across_any_split(text: str, stops: list[str], cuts: list[int]) -> None:
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(found)[1]] if found else text
    watcher = StopStrings(stops)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown = ""
    for a, b in itertools.pairwise(edges):
        shown += watcher.push(text[a:b])
        assert not any(stop in shown for stop in stops)
    assert shown + watcher.finish() == expected
    assert (watcher.found is not None) == bool(found)


def test_more_stop_strings_cost_no_more() -> None:
    """Lines of code that run for a text in which none of them is."""

    def lines(count: int) -> int:
        watcher, seen = StopStrings([f"stop {number}" for number in range(count)]), 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal seen
            if frame.f_code.co_filename != stops.__file__:  # what a collection of garbage calls, for one
                return None
            seen += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            watcher.push("a text with a stop and more of it")
        finally:
            sys.settrace(before)
        return seen

    assert lines(10_000) == lines(10) > 0


def test_choices_are_those_of_the_constraint_at_hand() -> None:
    """A device is told beforehand how to choose; what it was told is kept until a token is accepted."""

    class Second:
        def bits(self, size: int) -> NDArray[np.uint32]:
            return np.array([2] + [0] * ((size - 1) // 32), np.uint32)

    sampler = sampler_of(Sampling(), [], 10)
    (free,) = sampler.choices(1)
    assert free.mask is None
    assert sampler.choices(1)[0] is free
    sampler.constraint = Second()  # type: ignore[assignment]
    (held,) = sampler.choices(1)
    assert held.mask is not None
    assert held.mask.tolist() == [2]


def test_edits_are_what_penalties_do() -> None:
    """A device gets the penalties as a list; applied in its order they give the very same floats."""
    sampling = Sampling(
        repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, logit_bias={3: 1.5, 8: -2.0}
    )
    sampler = sampler_of(sampling, [1, 2, 3], 10)
    for token in (4, 4, 2):
        sampler._accept(token)
    logits = np.linspace(-2, 2, 10).astype(np.float32)
    edits, found = sampler._edits(), logits.copy()
    assert edits is not None
    for id, repeated, subtract, add in zip(*edits, strict=True):
        v = found[id]
        if repeated:
            v = v / np.float32(1.3) if v > 0 else v * np.float32(1.3)
        found[id] = np.float32(np.float32(np.float64(v) - subtract) + add)
    np.testing.assert_array_equal(found, sampler._penalise(logits))
