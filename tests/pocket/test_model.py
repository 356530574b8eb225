"""The training model and the engine compute the same function."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import penstock
from pocket.config import Batch, PocketConfig
from pocket.experts import MoE, round_mxfp4
from pocket.export import write_folder
from pocket.model import Pocket

CONFIG = PocketConfig(vocab=300, ratios=(0, 4, 128, 4), index_topk=16, experts=4, expert_width=32)


def random_model(seed: int = 0) -> Pocket:
    torch.manual_seed(seed)
    model = Pocket(CONFIG).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.endswith(("ape", "attn_sink", "gate.bias")):
                tensor.copy_(torch.randn_like(tensor) * 0.3)
            elif "hc_" in name and not name.endswith("scale"):
                tensor.add_(torch.randn_like(tensor) * 0.3)
            elif tensor.dim() == 1 and tensor.is_floating_point() and "norm" in name:
                tensor.mul_(1 + 0.2 * torch.randn_like(tensor))
    return model


def two_documents(ids: Tensor) -> Batch:
    """Two documents in one row: 256 tokens, then 384."""
    document = torch.cat((torch.zeros(256), torch.ones(384))).long().unsqueeze(0)
    position = torch.cat((torch.arange(256), torch.arange(384))).unsqueeze(0)
    return Batch(ids.unsqueeze(0), document, position, torch.ones(1, 640))


@torch.no_grad()
def test_training_and_inference_agree(tmp_path: Path) -> None:
    model = random_model(seed=1)  # one whose choices of experts and rows are all clear-cut
    ids = torch.randint(0, 300, (640,), generator=torch.Generator().manual_seed(1))
    output = model(two_documents(ids), sparse=True, draft=True)
    logits = model.logits(output.hidden)[0].numpy()
    assert output.draft is not None
    drafted = model.logits(output.draft)[0].numpy()
    write_folder(model, tmp_path)
    engine = penstock.Engine(tmp_path, kv_dtype="f32")
    for first, last in ((0, 256), (256, 640)):
        session = engine.session()
        found = session.feed(ids[first:last].tolist(), logits="all")
        assert found is not None
        assert np.abs(found - logits[first:last]).max() < 1e-5 * np.ptp(logits)
        session.rewind(1)
        draft = engine.mtp_logits(session, int(ids[last - 1]))
        assert np.abs(draft - drafted[last - 2]).max() < 1e-5 * np.ptp(drafted)


def test_experts_are_rounded_as_the_file_will_hold_them() -> None:
    from penstock.weights.quants import dequantize, quantize
    from penstock.weights.types import MXFP4

    weights = torch.randn(64, 96) * torch.logspace(-3, 1, 64).unsqueeze(1)
    stored = dequantize(quantize(weights.numpy(), MXFP4), MXFP4)
    assert np.array_equal(round_mxfp4(weights).numpy(), stored)


def test_routing_weights_sum_to_the_scale() -> None:
    moe = MoE(CONFIG, hashed=False, seed=0)
    weights, _ = moe.route(torch.randn(14, CONFIG.hidden), torch.zeros(14, dtype=torch.long))
    assert torch.allclose(weights.sum(-1), torch.full((14,), CONFIG.routed_scale))
    assert ((weights > 0).sum(-1) == CONFIG.experts_used).all()


@torch.no_grad()
def test_the_exported_file_holds_trunk_and_draft_block(tmp_path: Path) -> None:
    from penstock.weights.convert import convert
    from tests.oracles import llamacpp

    model = random_model(seed=1)
    write_folder(model, tmp_path / "folder")
    convert(tmp_path / "folder", tmp_path / "m.gguf", "f32", mtp_inside=True)
    ids = torch.randint(0, 300, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    apart = penstock.Engine(tmp_path / "folder", kv_dtype="f32")
    whole = penstock.Engine(tmp_path / "m.gguf", kv_dtype="f32")
    sessions = [engine.session() for engine in (apart, whole)]
    first, second = (session.feed(ids, logits="all") for session in sessions)
    assert first is not None
    assert second is not None
    assert np.array_equal(first, second)
    assert np.allclose(apart.mtp_logits(sessions[0], 5), whole.mtp_logits(sessions[1], 5), atol=1e-4)
    expected = llamacpp.logits(tmp_path / "m.gguf", ids, kv="f32")
    assert np.abs(expected - first).max() < 1e-5 * np.ptp(first)
