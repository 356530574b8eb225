"""A slice of layers runs alone, with or without embedding and head: the ground for pipelines."""

import numpy as np
import pytest

import penstock
from penstock.backend.base import DeviceWeight
from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.state import Step
from penstock.model.deepseek_v4.model import DeepSeekV4
from penstock.pocket import pocket_path
from penstock.storage.dense import DenseWeights
from penstock.storage.store import MappedExperts
from penstock.weights.checkpoint import Checkpoint
from penstock.weights.opening import open_checkpoint
from tests.tiny import TinyModel


class Noted(DenseWeights):
    """Notes which weights were asked for."""

    def __init__(self, checkpoint: Checkpoint, backend: CpuBackend):
        super().__init__(checkpoint, backend)
        self.asked: set[str] = set()

    def weight(self, name: str) -> DeviceWeight:
        self.asked.add(name)
        return super().weight(name)


class Slice:
    """Some layers of a checkpoint, with one sequence."""

    def __init__(self, checkpoint: Checkpoint, layers: range):
        self.backend = CpuBackend(1)
        layout = DeepSeekV4.state_layout(
            checkpoint, kv_dtype="f16", context=512, max_rewind=24, layers=layers
        )
        self.pool = self.backend.states(layout)
        self.dense, experts = Noted(checkpoint, self.backend), MappedExperts(checkpoint, self.backend)
        self.model = DeepSeekV4.build(checkpoint, self.backend, self.pool, experts, self.dense, layers=layers)
        self.slot = self.pool.allocate()

    def step(self, position: int, ids: list[int]) -> Step:
        return Step.of([(self.slot, position, ids, len(ids))])

    @property
    def blocks(self) -> set[str]:
        """Those whose weights were asked for."""
        return {".".join(name.split(".")[:2]) for name in self.dense.asked if name.startswith(("blk", "mtp"))}

    @property
    def states(self) -> set[str]:
        return {".".join(series.name.split(".")[:2]) for series in self.pool.layout.series}


@pytest.mark.parametrize("cut", [0, 1, 3, 6])
def test_two_slices_make_the_whole(engine: penstock.Engine, tiny: TinyModel, cut: int) -> None:
    checkpoint = engine.checkpoint
    front, back = Slice(checkpoint, range(cut)), Slice(checkpoint, range(cut, 6))
    rows, at = [], 0
    for count in (50, 1, 1, 48, 50):
        ids = tiny.ids[at : at + count]
        streams = front.model.forward(front.step(at, ids))
        streams = back.model.forward(back.step(at, ids), front.backend.host(streams))
        rows.append(back.model.logits(streams, back.step(at, ids)))
        at += count
        for part in (front, back):
            part.pool.commit(part.slot, at)
    whole = engine.session().feed(tiny.ids[:at], logits="all")
    assert whole is not None
    assert np.array_equal(np.concatenate(rows), whole)


@pytest.mark.parametrize(("first", "last"), [(0, 3), (3, 5), (5, 8), (0, 8), (8, 8), (0, 0)])
def test_a_slice_has_only_what_it_needs(first: int, last: int) -> None:
    """Of the pocket model, which has eight layers and a draft block."""
    part = Slice(open_checkpoint(pocket_path()), range(first, last))
    own = {f"blk.{number}" for number in range(first, last)}
    if last == 8:
        own.add("mtp.0")
    assert part.blocks == part.states == own
    assert (part.model.embedding is not None) == (first == 0 or last == 8)  # the draft block embeds too
    assert (part.model.head is not None) == (part.model.draft_block is not None) == (last == 8)
    assert ("token_embd.weight" in part.dense.asked) == (first == 0 or last == 8)
    assert ("output.weight" in part.dense.asked) == ("output_hc_fn.weight" in part.dense.asked) == (last == 8)


def test_a_slice_outside_the_model_is_refused(engine: penstock.Engine) -> None:
    with pytest.raises(ValueError, match=r"layers \[4, 9\)"):
        DeepSeekV4.state_layout(
            engine.checkpoint, kv_dtype="f16", context=64, max_rewind=0, layers=range(4, 9)
        )


def test_a_draft_block_goes_with_the_last_slice() -> None:
    checkpoint = open_checkpoint(pocket_path())
    front, back = Slice(checkpoint, range(5)), Slice(checkpoint, range(5, 8))
    ids = list(range(100, 140))
    streams = front.model.forward(front.step(0, ids))
    back.model.forward(back.step(0, ids), front.backend.host(streams))
    back.pool.commit(back.slot, len(ids))
    with penstock.Engine(pocket_path(), context=512, threads=1) as engine:
        session = engine.session()
        session.feed(ids)
        expected = engine.mtp_logits(session, 7)
    assert np.array_equal(back.model.draft_logits(back.slot, len(ids), 7), expected)
