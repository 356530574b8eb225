"""A draft block's guesses, in one call and one by one."""

from pathlib import Path

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.engine.runner import LocalRunner
from penstock.model.deepseek_v4.model import DeepSeekV4
from penstock.pocket import pocket_path


@pytest.fixture(params=["one projection of both", "two projections"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "one projection of both":
        return Engine(pocket_path(), draft="mtp")
    from pocket.export import write_folder
    from tests.pocket.test_model import random_model

    write_folder(random_model(), tmp_path)
    return Engine(tmp_path, draft="mtp")


@pytest.mark.parametrize("read", [1, 2, 5, 9, 30])
def test_guesses_in_one_call_are_those_made_one_by_one(engine: Engine, read: int) -> None:
    """However many pairs the window has to catch up with first: tokens, and how likely they are, to the last bits."""
    runner = engine.loader.load()
    assert isinstance(runner, LocalRunner)
    assert isinstance(runner.model, DeepSeekV4)
    assert runner.model.draft_block is not None
    numbers = np.random.default_rng(read)
    ids = [int(token) for token in numbers.integers(16, engine.config.vocab_size, 40)]
    together, apart = engine.session(), engine.session()
    for session in (together, apart):
        session.feed(ids)
        for token in ids[:read]:
            session.feed([token])
    found = engine.stepper.draft(together, 7, 4, 0.0)
    slot, position = apart.state.slot, apart.position
    expected = runner.model._draft_one_by_one(runner.model.draft_block, slot, position, 7, 4, 0.0)
    assert [token for token, _ in found] == [token for token, _ in expected]
    assert np.allclose([chance for _, chance in found], [chance for _, chance in expected], rtol=1e-5)
