"""A slice of layers runs alone, with or without embedding and head: the ground for pipelines."""

import pytest
import torch

import penstock
from penstock.storage.store import MappedExperts
from penstock.kernels import cpu
from penstock.kv.state import SequenceMemory
from penstock.model.model import DeepSeekV4
from tests.tiny import TinyModel


@pytest.mark.parametrize("cut", [0, 1, 3, 6])
def test_two_slices_make_the_whole(engine: penstock.Engine, tiny: TinyModel, cut: int) -> None:
    checkpoint = engine.checkpoint
    experts = MappedExperts(checkpoint, cpu)
    front = DeepSeekV4(checkpoint, cpu, experts, last=cut)
    back = DeepSeekV4(checkpoint, cpu, experts, first=cut)
    state = SequenceMemory(engine.layout)
    rows = []
    with torch.inference_mode():
        for at in range(0, 150, 50):
            ids = tiny.ids[at : at + 50]
            streams = front.forward(front.batch([(state, ids)]))
            streams = back.forward(back.batch([(state, ids)]), streams)
            state.commit(len(ids))
            rows.append(back.head(streams))
    whole = engine.session().feed(tiny.ids[:150], logits="all")
    assert whole is not None
    assert torch.equal(torch.cat(rows), torch.from_numpy(whole))


def test_a_slice_outside_the_model_is_refused(engine: penstock.Engine) -> None:
    experts = MappedExperts(engine.checkpoint, cpu)
    with pytest.raises(ValueError, match=r"layers \[4, 9\)"):
        DeepSeekV4(engine.checkpoint, cpu, experts, first=4, last=9)
