"""Synthetic models: valid for us and for llama.cpp, healthy at any depth, reproducible, skewed as asked."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from numpy.typing import NDArray
from typer.testing import CliRunner

from penstock import Engine
from penstock.backend.cpu.backend import CpuBackend
from penstock.backend.state import Step
from penstock.cli.commands.synth import synth_command
from penstock.errors import OptionError
from penstock.model.deepseek_v4.description import Description
from penstock.storage.dense import DenseWeights
from penstock.weights import synth as synth_module
from penstock.weights import types
from penstock.weights.config import AttentionKind
from penstock.weights.opening import open_checkpoint
from penstock.weights.popularity import inclusion
from penstock.weights.quants import dequantize
from penstock.weights.random_blocks import random_blocks
from penstock.weights.synth import MIXES, plan_synth, synth, write_synth
from penstock.weights.types import WeightType
from tests.oracles import llamacpp
from tests.spec.router import route

Logits = NDArray[np.float32]
BLOCK_KINDS = (
    types.F32,
    types.F16,
    types.BF16,
    types.Q8_0,
    types.Q2_K,
    types.Q4_K,
    types.IQ2_XXS,
    types.MXFP4,
)


def tokens(count: int, vocab: int = 512) -> list[int]:
    return [int(token) for token in np.random.default_rng(7).integers(0, vocab, count)]


def run(path: Path, ids: list[int]) -> Logits:
    logits = Engine(path, kv_dtype="f32", threads=1).session().feed(ids, logits="all")
    assert logits is not None
    return logits


def divergence(ours: Logits, theirs: Logits) -> NDArray[np.float64]:
    """KL(ours ‖ theirs) of every row."""
    p, q = (
        x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (ours.astype(float), theirs.astype(float))
    )
    return np.asarray((np.exp(p) * (p - q)).sum(-1))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", BLOCK_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("std", [1.0, 0.5, 4096**-0.5, 7168**-0.5])
def test_random_blocks_decode_to_the_wanted_spread(kind: WeightType, std: float) -> None:
    raw = random_blocks(kind, std)(np.random.default_rng(1), 4_000_000 // kind.block)
    values = dequantize(raw, kind)
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(std, rel=0.015)
    assert abs(values.mean()) < 0.01 * std


@pytest.mark.parametrize("kind", BLOCK_KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("blocks", [1, 3])
def test_few_blocks_have_their_exact_size(kind: WeightType, blocks: int) -> None:
    assert random_blocks(kind, 0.1)(np.random.default_rng(0), blocks).nbytes == blocks * kind.block_bytes


# ── models ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_opens_and_runs(mix: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    report = synth(path, mix=mix)
    model = open_checkpoint(path)
    assert not model.unused
    assert model.metadata["general.name"] == f"synthetic tiny {mix} 6L seed 0"
    assert (report.bytes, report.tensors) == (path.stat().st_size, len(model.index))
    logits = run(path, tokens(40))
    assert np.isfinite(logits).all()
    assert 2 < logits.std() < 4


@pytest.mark.parametrize(
    ("mix", "mean_kl", "top1"), [("f16", 1e-5, 0.98), *((mix, 0.005, 0.9) for mix in MIXES if mix != "f16")]
)
def test_llama_cpp_agrees(mix: str, mean_kl: float, top1: float, tmp_path: Path) -> None:
    """With nothing to choose by score, what remains is llama.cpp's rounding of activations (16 or 8 bits)."""
    path = tmp_path / "model.gguf"
    synth(path, mix=mix, hash_layers=6)
    ids = tokens(64)  # the indexer still takes every row
    ours, theirs = run(path, ids), llamacpp.logits(path, ids)
    assert divergence(ours, theirs).mean() < mean_kl
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() >= top1


def test_llama_cpp_agrees_with_every_path_in_use(tmp_path: Path) -> None:
    """Heavy rows, dropped index rows and scored experts; a few rows may choose differently at near-ties."""
    path = tmp_path / "model.gguf"
    synth(path, mix="f16")
    ids = tokens(200)
    ours, theirs = run(path, ids), llamacpp.logits(path, ids)
    assert np.median(divergence(ours, theirs)) < 1e-4
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() >= 0.97


def test_the_tiny_model_has_every_path() -> None:
    config = plan_synth().config
    assert {layer.attention for layer in config.layers} == set(AttentionKind)
    assert {layer.hashed for layer in config.layers} == {True, False}
    assert config.index_topk < 150 // 4
    assert config.yarn_factor > 1


def test_a_deep_model_stays_healthy(tmp_path: Path) -> None:
    path = tmp_path / "deep.gguf"
    synth(path, layers=43)
    engine = Engine(path, kv_dtype="f32", threads=1)
    model, session = engine.runner.model, engine.session()
    step = Step.of([(session.state.slot, 0, tokens(140), 140)])
    hidden = model.forward(step)
    streams, logits = engine.backend.host(hidden), model.logits(hidden, step)
    assert 1 < np.sqrt(np.square(streams).mean()) < 20
    assert np.sqrt(streams.var(axis=1).mean()) > 0.05  # the streams are not copies of each other
    assert np.isfinite(logits).all()
    assert 2 < logits.std() < 4


@pytest.mark.slow
def test_a_full_width_layer_runs(tmp_path: Path) -> None:
    path = tmp_path / "wide.gguf"
    report = synth(path, width="flash", layers=1, vocab=4096)
    assert report.notes == ("layer 0 has ratio 4 instead of 0: llama.cpp needs one such layer",)
    ids = tokens(16, 4096)
    ours, theirs = run(path, ids), llamacpp.logits(path, ids)
    assert 2 < ours.std() < 4
    assert divergence(ours, theirs).mean() < 0.02


# ── reproducible ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_is_a_file(mix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    synth(first, mix=mix, seed=3)
    monkeypatch.setattr(synth_module, "THREADS", 1)
    monkeypatch.setattr(synth_module, "AHEAD", 1)
    synth(again, mix=mix, seed=3)
    synth(other, mix=mix, seed=4)
    assert digest(first) == digest(again) != digest(other)


def test_every_tensor_of_another_seed_is_different(tmp_path: Path) -> None:
    one, two = tmp_path / "one.gguf", tmp_path / "two.gguf"
    synth(one, seed=1)
    synth(two, seed=2)
    ours, theirs = open_checkpoint(one), open_checkpoint(two)
    same = [n for n in ours.index if np.array_equal(ours.weight(n).raw, theirs.weight(n).raw)]
    assert same == []


def test_pieces_of_a_tensor_are_independent(tmp_path: Path) -> None:
    """No stream of random bits is used twice, within a tensor or between tensors."""
    path = tmp_path / "model.gguf"
    synth(path, mix="q8_0", layers=2)
    words = np.sort(np.fromfile(path, np.uint64))
    assert (words[1:] == words[:-1]).mean() < 0.02  # the header and the hash tables repeat themselves


# ── skew ──────────────────────────────────────────────────────────────────────────────────────────────────


def frequencies(folder: Path, skew: float, layer: int) -> NDArray[np.float64]:
    """How often the router of a layer chooses the expert of each rank, best first; sums to 1.  Layer 0 is
    hash-routed, layer 1 scored."""
    plan = plan_synth(mix="q8_0", layers=2, hash_layers=1, skew=skew, vocab=8000)
    layers = tuple(replace(item, expert_width=32) for item in plan.config.layers)
    plan = replace(plan, config=replace(plan.config, experts=256, experts_used=6, layers=layers))
    write_synth(plan, folder / "skewed.gguf", overwrite=True)
    model = open_checkpoint(folder / "skewed.gguf")
    backend = CpuBackend(2)
    spec = Description(model, backend, DenseWeights(model, backend)).router(
        f"blk.{layer}", model.config.layers[layer]
    )
    x = torch.randn(8000, model.config.hidden, generator=torch.Generator().manual_seed(0))
    ids, _ = route(x.double(), torch.arange(8000), spec)
    counts = np.bincount(ids.flatten().numpy(), minlength=256)
    by_rank = np.empty(256)
    by_rank[plan.ranks(layer)] = counts
    return np.asarray(by_rank / counts.sum())


@pytest.mark.parametrize("layer", [0, 1], ids=["hashed", "scored"])
@pytest.mark.parametrize("skew", [0.5, 1.0, 1.5])
def test_popularity_follows_zipf(skew: float, layer: int, tmp_path: Path) -> None:
    measured = frequencies(tmp_path, skew, layer)
    # An expert is chosen at most once per token, so the head of the law is flatter than r^-skew: compare the
    # whole with draws without replacement, and the tail with the law itself.
    expected = inclusion(256, 6, skew) / 6
    assert measured[:26].sum() == pytest.approx(expected[:26].sum(), abs=0.03)
    octaves = [part.mean() for part in np.split(measured, [1, 2, 4, 8, 16, 32, 64, 128])]
    assert all(more > less for more, less in pairwise(octaves))
    tail = np.arange(16, 257)
    slope = np.polyfit(np.log(tail), np.log(measured[15:].clip(1e-6)), 1)[0]
    assert slope == pytest.approx(-skew, abs=0.2)


@pytest.mark.parametrize("layer", [0, 1], ids=["hashed", "scored"])
def test_without_skew_all_experts_are_alike(layer: int, tmp_path: Path) -> None:
    measured = frequencies(tmp_path, 0.0, layer) * 256
    assert 0.3 < measured.min() < measured.max() < 2


def test_each_layer_has_its_own_favourites() -> None:
    plan = plan_synth(skew=1.0)
    assert sorted(plan.ranks(0)) == list(range(16))
    assert list(plan.ranks(0)) != list(plan.ranks(1))


# ── schedules and sizes ───────────────────────────────────────────────────────────────────────────────────


def ratios_of(**options: object) -> list[int]:
    return [layer.ratio for layer in plan_synth(**options).config.layers]  # type: ignore[arg-type]


def test_published_schedules() -> None:
    assert ratios_of(width="flash") == [0, 0, *[4, 128] * 20, 4]
    assert ratios_of(width="pro") == [128, 128, *[4, 128] * 29, 4]
    assert ratios_of(width="flash", layers=4) == [0, 0, 4, 128]


def test_a_prefix_without_sparse_layer_gets_one() -> None:
    plan = plan_synth(width="flash", layers=2)
    assert [layer.ratio for layer in plan.config.layers] == [0, 4]
    assert "layer 1 has ratio 4 instead of 0" in plan.notes[0]
    assert plan_synth(width="flash", layers=3).notes == ()


def test_ratios_and_hash_layers_can_be_chosen() -> None:
    config = plan_synth(ratios=[128, 4, 0], hash_layers=1).config
    assert [layer.ratio for layer in config.layers] == [128, 4, 0]
    assert [layer.hashed for layer in config.layers] == [True, False, False]
    assert "llama.cpp cannot run" in plan_synth(ratios=[0]).notes[0]


@pytest.mark.parametrize(
    ("width", "mix", "expert"),
    [
        ("flash", "q2", 7_077_888),
        ("flash", "q4", 14_155_776),
        ("flash", "mxfp4", 13_369_344),
        ("pro", "q2", 18_579_456),
    ],
)
def test_bytes_of_an_expert(width: str, mix: str, expert: int) -> None:
    assert plan_synth(width=width, layers=4, mix=mix).expert_bytes == expert


@pytest.mark.parametrize(("mix", "non_routed"), [("q2", 8_801_384_796), ("mxfp4", 9_203_269_980)])
def test_bytes_of_flash(mix: str, non_routed: int) -> None:
    """All of the published model's tensors but the routed experts, to the byte."""
    plan = plan_synth(width="flash", mix=mix)
    assert plan.data_bytes - 43 * 256 * plan.expert_bytes == non_routed
    assert sum(layer.hashed for layer in plan.config.layers) == 3


def test_published_hyper_parameters() -> None:
    flash, pro = (plan_synth(width=width).config for width in ("flash", "pro"))
    assert (flash.hidden, flash.heads, flash.q_rank, flash.o_groups) == (4096, 64, 1024, 8)
    assert (pro.hidden, pro.heads, pro.q_rank, pro.o_groups) == (7168, 128, 1536, 16)
    assert (flash.experts, flash.routed_scale, flash.index_topk) == (256, 1.5, 512)
    assert (pro.experts, pro.routed_scale, pro.index_topk) == (384, 2.5, 1024)
    for config in (flash, pro):
        assert (config.vocab_size, config.window, config.context_length) == (129280, 128, 1 << 20)
        assert (config.head_dim, config.o_rank, config.experts_used) == (512, 1024, 6)
        assert (config.rope_dim, config.rope_theta, config.compress_rope_theta) == (64, 10000, 160000)
        assert (config.yarn_factor, config.yarn_original_context) == (16, 65536)
        assert (config.index_heads, config.index_dim, config.streams) == (64, 128, 4)
        assert {layer.swiglu_limit for layer in config.layers} == {10.0}
    assert {layer.expert_width for layer in flash.layers} == {2048}
    assert {layer.expert_width for layer in pro.layers} == {3072}


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": "huge"}, "--width is 'huge', expected one of flash, pro, tiny"),
        ({"mix": "q3"}, "--mix is 'q3', expected one of q2"),
        ({"layers": 0}, "--layers is 0, expected 1 to 512"),
        ({"layers": 513}, "--layers is 513"),
        ({"vocab": 100}, "--vocab is 100, expected 283"),
        ({"skew": -0.5}, "--skew is -0.5, expected 0 to 8"),
        ({"skew": float("nan")}, "--skew is nan"),
        ({"seed": -1}, "--seed is -1"),
        ({"ratios": [4, 8]}, "--ratios is [4, 8], expected only 0, 4 and 128"),
        ({"ratios": []}, "--ratios is 0, expected 1 to 512"),
        ({"ratios": [4], "layers": 2}, "--ratios is [4], expected one ratio for each of 2 layers"),
        ({"hash_layers": 7}, "--hash-layers is 7, expected 0 to the number of layers, 6"),
        ({"hash_layers": -1}, "--hash-layers is -1"),
    ],
)
def test_impossible_options(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        synth(tmp_path / "model.gguf", **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("precious")
    with pytest.raises(OptionError, match="--force"):
        synth(path)
    assert path.read_text() == "precious"
    synth(path, overwrite=True)
    open_checkpoint(path)


def test_destinations_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="found a folder"):
        synth(tmp_path, overwrite=True)
    with pytest.raises(OptionError, match="does not exist"):
        synth(tmp_path / "missing" / "model.gguf")


def test_a_full_disk_is_noticed_before_writing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"needs [\d,]{15,} bytes, the disk has [\d,]+ free"):
        synth(tmp_path / "model.gguf", width="pro", layers=512, mix="f16")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Callable[..., object]:
        def make(*_: object) -> object:
            raise RuntimeError("broken")

        return make

    monkeypatch.setattr(synth_module, "random_blocks", broken)
    with pytest.raises(RuntimeError, match="broken"):
        synth(tmp_path / "model.gguf")
    assert list(tmp_path.iterdir()) == []


# ── command ───────────────────────────────────────────────────────────────────────────────────────────────


def invoke(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(synth_command)
    return CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shown = invoke(str(path), "--ratios", "0,4,128", "--hash-layers", "1", "--mix", "q4", "--seed", "5")
    assert f"{path}: {path.stat().st_size:,} bytes" in shown
    assert "MB/s" in shown
    assert [layer.ratio for layer in open_checkpoint(path).config.layers] == [0, 4, 128]
    with pytest.raises(OptionError, match="--force"):
        invoke(str(path))
    report = json.loads(invoke(str(path), "--force", "--json", "--layers", "1"))
    assert report["bytes"] == path.stat().st_size
    assert report["notes"] == ["layer 0 has ratio 4 instead of 0: llama.cpp needs one such layer"]


def test_command_names_the_bad_flag(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--ratios is '0,x', expected whole numbers"):
        invoke(str(tmp_path / "model.gguf"), "--ratios", "0,x")
