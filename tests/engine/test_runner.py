"""Steps as a runner runs them: logits of any rows, and `commit` keeps the first tokens of a step, as if only they had
been fed."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

import penstock
from penstock.backend.state import Step
from penstock.engine.runner import Runner
from penstock.errors import OptionError
from penstock.kv.state import SequenceState
from penstock.pocket import pocket_path
from tests.tiny import TinyModel

MAX_REWIND = 7


@pytest.fixture(scope="module", params=["tiny", "with a draft block"])
def loaded(request: pytest.FixtureRequest, tiny: TinyModel) -> Iterator[penstock.Engine]:
    path = tiny.folder if request.param == "tiny" else pocket_path()
    with penstock.Engine(path, max_rewind=MAX_REWIND, context=1024, threads=2) as engine:
        yield engine


def tokens(first: int, count: int) -> list[int]:
    return [(31 * number + 7) % 320 for number in range(first, first + count)]


class Fed:
    """A sequence with its tokens."""

    def __init__(self, engine: penstock.Engine, ids: Sequence[int] = ()):
        self.engine, self.state, self.ids = engine, SequenceState(engine.states), list[int]()
        if ids:
            self.feed(ids)

    def work(self, ids: Sequence[int], rows: int | None = None) -> tuple[int, int, Sequence[int], int]:
        return self.state.slot, self.state.position, ids, len(ids) if rows is None else rows

    def keep(self, ids: Sequence[int], left_out: int = 0) -> None:
        self.state.advance(len(ids), left_out)
        self.ids += ids

    def feed(self, ids: Sequence[int]) -> np.ndarray:
        step = Step.of([self.work(ids)])
        logits = self.engine.runner.run(step)
        self.engine.runner.commit(step)
        self.keep(ids)
        return logits

    def rows(self, floor: int) -> dict[str, bytes]:
        """The state's rows that count if it may go back to `floor`."""
        self.engine.runner.settle(self.state.slot)
        found = self.state.pool.tensors(self.state.slot, self.state.position, floor)
        return {name: rows.tobytes() for name, rows in found.items()}


def assert_like_fed(fed: Fed) -> None:
    """The state, and all that follows from it, is that of a sequence that was only ever fed these tokens."""
    runner, other = fed.engine.runner, Fed(fed.engine, fed.ids)
    floor = max(fed.state.floor, other.state.floor)
    assert fed.rows(floor) == other.rows(floor)
    if fed.engine.checkpoint.has_mtp and fed.ids:
        ours, theirs = (runner.draft_logits(each.state.slot, len(fed.ids), 5) for each in (fed, other))
        assert np.array_equal(ours, theirs)
    following = tokens(900, 9)
    assert np.array_equal(fed.feed(following[:1]), other.feed(following[:1]))
    assert np.array_equal(fed.feed(following[1:]), other.feed(following[1:]))
    assert fed.rows(floor + 9) == other.rows(floor + 9)


@pytest.mark.parametrize("before", [0, 1, 50, 127])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_first_tokens_of_a_step_are_kept(loaded: penstock.Engine, before: int, count: int) -> None:
    expected = Fed(loaded, tokens(0, before)).feed(tokens(before, count))
    for kept in range(max(0, count - MAX_REWIND), count + 1):
        fed = Fed(loaded, tokens(0, before))
        step = Step.of([fed.work(tokens(before, count))])
        assert np.array_equal(loaded.runner.run(step), expected)
        loaded.runner.commit(step, [kept])
        fed.keep(tokens(before, kept), count - kept)
        assert fed.state.floor == max(0, before + kept - MAX_REWIND)
        assert_like_fed(fed)


@pytest.mark.parametrize("count", [20, 60, 300])
def test_long_steps_too(loaded: penstock.Engine, count: int) -> None:
    """More rows than any ring has places."""
    for kept in (count - MAX_REWIND, count - 3, count):
        fed = Fed(loaded, tokens(0, 130))
        step = Step.of([fed.work(tokens(130, count), rows=0)])
        loaded.runner.run(step)
        loaded.runner.commit(step, [kept])
        fed.keep(tokens(130, kept), count - kept)
        assert_like_fed(fed)


@pytest.mark.parametrize("count", [1, 4, 8, 9, 10, 17, 60])
@pytest.mark.parametrize("left_out", [0, 1, MAX_REWIND])
def test_rewinding_goes_as_far_as_the_state_says(loaded: penstock.Engine, count: int, left_out: int) -> None:
    """After a step as long as drafts make it, as far as ever."""
    fed = Fed(loaded, tokens(0, 150))
    kept = max(0, count - left_out)
    step = Step.of([fed.work(tokens(150, count), rows=0)])
    loaded.runner.run(step)
    loaded.runner.commit(step, [kept])
    fed.keep(tokens(150, kept), count - kept)
    back = fed.state.position - fed.state.floor
    assert back == MAX_REWIND or (count > MAX_REWIND + 2 and back == MAX_REWIND + 1 - left_out)
    fed.state.rewind(back)
    del fed.ids[len(fed.ids) - back :]
    assert_like_fed(fed)


def test_several_sequences_at_once(loaded: penstock.Engine) -> None:
    """Each keeps its own number of tokens; single rows, drafts and a whole prompt side by side."""
    befores, counts = (3, 140, 0, 61), (1, 6, 90, 4)
    for kept in ((1, 6, 90, 4), (0, 2, 88, 0), (1, 0, 85, 3)):
        all_fed = [Fed(loaded, tokens(7 * number, before)) for number, before in enumerate(befores)]
        ids = [tokens(500 + number, count) for number, count in enumerate(counts)]
        step = Step.of([fed.work(own) for fed, own in zip(all_fed, ids, strict=True)])
        logits = loaded.runner.run(step)
        loaded.runner.commit(step, kept)
        parts = np.split(logits, np.cumsum(counts)[:-1])
        for number, (fed, own, part) in enumerate(zip(all_fed, ids, parts, strict=True)):
            alone = Fed(loaded, fed.ids)
            assert np.array_equal(alone.feed(own), part)
            fed.keep(own[: kept[number]], len(own) - kept[number])
            assert_like_fed(fed)


@pytest.mark.parametrize("count", [1, 2, 30])
def test_discarding_a_step_leaves_no_trace(loaded: penstock.Engine, count: int) -> None:
    fed, other = Fed(loaded, tokens(0, 150)), Fed(loaded, tokens(3, 40))
    floors = fed.state.floor, other.state.floor
    before = fed.rows(floors[0]), other.rows(floors[1])
    step = Step.of([fed.work(tokens(600, count)), other.work(tokens(700, 1))])
    loaded.runner.run(step)
    loaded.runner.discard(step)
    assert (fed.rows(floors[0]), other.rows(floors[1])) == before
    assert_like_fed(fed)
    assert_like_fed(other)


def test_drafts_that_are_verified_give_the_same_text(loaded: penstock.Engine) -> None:
    """Greedy, with wrong guesses behind right ones: what is accepted is what one token at a time gives."""
    plain, fed = Fed(loaded, tokens(0, 40)), Fed(loaded, tokens(0, 40))
    expected, logits = [], plain.feed([11])
    for _ in range(24):
        expected.append(int(logits[-1].argmax()))
        logits = plain.feed(expected[-1:])
    found: list[int] = []
    pending, rng = [11], np.random.default_rng(0)
    while len(found) < 24:
        right = expected[len(found) : len(found) + int(rng.integers(0, 4))]
        guesses = [*right, 319]  # the last one is wrong
        step = Step.of([fed.work(pending + guesses)])
        best = loaded.runner.run(step).argmax(1).tolist()
        accepted = 0
        while accepted < len(guesses) and guesses[accepted] == best[accepted]:
            accepted += 1
        loaded.runner.commit(step, [1 + accepted])
        fed.keep(pending + guesses[:accepted], len(guesses) - accepted)
        found += [*guesses[:accepted], best[accepted]]
        pending = found[-1:]
    assert found[:24] == expected


def test_only_wanted_rows_have_logits(loaded: penstock.Engine) -> None:
    ids = tokens(0, 12)
    every = Fed(loaded).feed(ids)
    for rows in (0, 1, 5):
        fed, other = Fed(loaded), Fed(loaded)
        step = Step.of([fed.work(ids, rows), other.work(ids[:3], 2)])
        found = loaded.runner.run(step)
        loaded.runner.discard(step)
        assert np.array_equal(found, np.concatenate((every[12 - rows :], every[1:3])))


def test_what_cannot_be_kept_is_refused(loaded: penstock.Engine) -> None:
    runner: Runner = loaded.runner
    fed = Fed(loaded, tokens(0, 20))
    step = Step.of([fed.work(tokens(20, 9))])
    runner.run(step)
    for kept in (-1, 10, 9 - MAX_REWIND - 1):
        with pytest.raises(OptionError, match="cannot be kept"):
            runner.commit(step, [kept])
    runner.commit(step, [9 - MAX_REWIND])
    fed.keep(tokens(20, 9 - MAX_REWIND), MAX_REWIND)
    assert_like_fed(fed)
