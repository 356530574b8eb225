"""Sessions to save that need no model, and their comparison."""

import torch

from penstock.kv.snapshot import Snapshot
from penstock.kv.state import SequenceMemory, StateLayout

MODEL = "a model's fingerprint"
PLENTY = 1 << 30


def made_up(layout: StateLayout, tokens: list[int]) -> Snapshot:
    """A state of these tokens that no model computed; other tokens give another."""
    state = SequenceMemory(layout)
    state.position = state.floor = len(tokens)
    generator = torch.Generator().manual_seed(hash(tuple(tokens)))
    shapes = state.expected_shapes()
    state.restore({name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})
    return Snapshot(tokens, state, None)


def assert_equal(found: Snapshot | None, expected: Snapshot) -> None:
    assert found is not None
    assert found.tokens == expected.tokens
    ours, theirs = found.state.tensors(), expected.state.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
