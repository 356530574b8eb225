"""Sessions to save that need no model, and their comparison."""

import numpy as np

from penstock.backend.state import DTYPES, StateMemory
from penstock.kv.snapshot import Snapshot
from penstock.kv.state import SequenceState, live_shapes

MODEL = "a model's fingerprint"
PLENTY = 1 << 30


def made_up(states: StateMemory, tokens: list[int]) -> Snapshot:
    """A state of these tokens that no model computed; other tokens give another."""
    state = SequenceState(states)
    state.position = state.floor = len(tokens)
    rng = np.random.default_rng(abs(hash(tuple(tokens))))
    shapes = live_shapes(states.layout, len(tokens), len(tokens))
    state.restore(
        {
            series.name: rng.integers(0, 100, shapes[series.name]).astype(DTYPES[series.dtype])
            for series in states.layout.series
        }
    )
    return Snapshot(tokens, state, None)


def assert_equal(found: Snapshot | None, expected: Snapshot) -> None:
    assert found is not None
    assert found.tokens == expected.tokens
    ours, theirs = found.state.tensors(), expected.state.tensors()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
