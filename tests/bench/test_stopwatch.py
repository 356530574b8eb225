"""Time is counted once, wherever parts nest, and watching leaves no trace."""

import pytest

import penstock
from penstock.bench.stopwatch import Stopwatch, watching
from penstock.bench.traffic import Part
from penstock.model.deepseek_v4.model import DeepSeekV4


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still unless a test moves it."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def test_a_part_does_not_count_the_parts_inside_it(clock: list[float]) -> None:
    watch = Stopwatch()

    def work(seconds: float) -> None:
        clock[0] += seconds

    route = watch.wrap(Part.ROUTER, lambda: work(1))

    def run() -> None:
        route()
        work(10)

    experts = watch.wrap(Part.HEAD, run)

    def moe() -> None:
        work(100)
        experts()
        route()

    watch.wrap(Part.EXPERTS, moe)()
    assert watch.seconds == {Part.ROUTER: 2, Part.HEAD: 10, Part.EXPERTS: 100}


def test_what_fails_is_counted_too(clock: list[float]) -> None:
    watch = Stopwatch()

    def fail() -> None:
        clock[0] += 3
        raise KeyError

    inner = watch.wrap(Part.ROUTER, fail)
    with pytest.raises(KeyError):
        watch.wrap(Part.EXPERTS, inner)()
    assert watch.seconds == {Part.ROUTER: 3, Part.EXPERTS: 0}


def test_every_part_of_the_model_is_seen_and_put_back(small_engine: penstock.Engine) -> None:
    model = small_engine.runner.model
    assert isinstance(model, DeepSeekV4)
    objects = [model, *model.layers, *(layer.router for layer in model.layers), model.embedding]
    before = [set(vars(thing)) for thing in objects]
    with watching(model) as watch:
        small_engine.session().feed([1, 2, 3])
    seen = {part for part, seconds in watch.seconds.items() if seconds > 0}
    assert seen == set(Part) - {Part.DRAFT, Part.OTHER}
    assert [set(vars(thing)) for thing in objects] == before


def test_watching_changes_no_result(small_engine: penstock.Engine) -> None:
    plain = small_engine.session().feed([5, 6, 7])
    with watching(small_engine.runner.model):
        watched = small_engine.session().feed([5, 6, 7])
    assert plain is not None
    assert watched is not None
    assert plain.tobytes() == watched.tobytes()
