"""Heat: how often experts were used lately, and the map that an engine shows of them."""

import threading
from typing import Any

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.pocket import pocket_path
from penstock.storage.heat import HALF_LIFE, OLDEST, Heat
from penstock.storage.streamed import StreamedExperts

PROMPT = list(range(100, 140))
GREEDY = Sampling(temperature=0.0)
PATIENCE_S = 300


def streaming() -> Engine:
    """With memory for some of the pocket model's experts."""
    options: dict[str, Any] = {"threads": 1, "context": 256, "streaming": "direct", "policy": "lru"}
    options["draft"] = "mtp"
    plan = Engine(pocket_path(), load=False, **options, memory="8GiB").plan
    return Engine(pocket_path(), **options, memory=plan.smallest + plan.experts_total // 3)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_use_counts_half_after_every_half_life() -> None:
    clock = Clock()
    heat = Heat(["blk.0", "blk.1"], 4, clock)
    heat.use("blk.1", [2])
    clock.now = HALF_LIFE
    heat.use("blk.1", [2, 3])
    assert heat.now().tolist() == [[0, 0, 0, 0], [0, 0, 1.5, 1]]
    clock.now = 3 * HALF_LIFE
    assert heat.now().tolist() == [[0, 0, 0, 0], [0, 0, 0.375, 0.25]]


@pytest.mark.parametrize("gap", [1.0, 7.0])
def test_counting_goes_on_for_ever(gap: float) -> None:
    clock = Clock()
    heat = Heat(["blk.0"], 2, clock)
    for number in range(2 * OLDEST):
        clock.now = number * gap * HALF_LIFE
        heat.use("blk.0", [1])
    assert heat.now().tolist() == [[0, pytest.approx(1 / (1 - 2**-gap))]]


def test_what_lies_idle_for_long_is_cold() -> None:
    clock = Clock()
    heat = Heat(["blk.0"], 1, clock)
    heat.use("blk.0", [0])
    clock.now = 10 * OLDEST * HALF_LIFE
    assert heat.now().tolist() == [[0]]
    heat.use("blk.0", [0])
    assert heat.now().tolist() == [[1]]


def test_a_streaming_engine_shows_what_its_cache_holds() -> None:
    with streaming() as engine:
        session = engine.session()
        session.feed(PROMPT)
        for token in range(5):
            session.feed([token])
        found, store = engine.expert_map(), engine.storage.experts
        assert found is not None
        assert isinstance(store, StreamedExperts)
        assert found.blocks == [*(f"blk.{layer}" for layer in range(8)), "mtp.0"]
        assert found.present.shape == found.heat.shape == (9, 16)
        assert set(np.flatnonzero(found.present)) == set(store.cache.keys())
        assert 0 < found.present.sum() < found.present.size
        assert (found.heat[:8] > 0).any(1).all()
        assert not found.heat[8].any()  # nobody has drafted


def test_a_mapped_engine_shows_all_as_present() -> None:
    with Engine(pocket_path(), threads=1, context=256, streaming="mmap") as engine:
        engine.session().feed(PROMPT[:1])
        found = engine.expert_map()
        assert found is not None
        assert found.present.all()
        assert (found.heat[:8] > 0).sum(1).tolist() == [2] * 8  # the two that a token takes


def test_a_parked_engine_has_no_map() -> None:
    with Engine(pocket_path(), threads=1, context=256, load=False) as engine:
        assert engine.expert_map() is None


def test_whoever_watches_need_not_wait_and_disturbs_nobody() -> None:
    with streaming() as engine:
        looked, done = threading.Event(), threading.Event()

        def watch() -> None:
            while not done.is_set():
                assert engine.expert_map() is not None
                looked.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            assert looked.wait(PATIENCE_S)
            with_watcher = [step.token for step in engine.generate(PROMPT, 20, GREEDY)]
        finally:
            done.set()
            watcher.join()
        assert with_watcher == [step.token for step in engine.generate(PROMPT, 20, GREEDY)]
