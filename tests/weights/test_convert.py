"""Conversion keeps the model: what a GGUF file computes is what its checkpoint folder said, for every mix and
every layout, in Penstock, in Hugging Face's implementation and in llama.cpp."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest
import torch
import typer
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from typer.testing import CliRunner

import penstock
from penstock.cli.convert import convert_command
from penstock.errors import ModelFormatError, OptionError
from penstock.tokenizer import byte_tokenizer_metadata
from penstock.weights import recode
from penstock.weights.convert import convert
from penstock.weights.mixes import MIXES
from penstock.weights.opening import open_checkpoint
from penstock.weights.safetensors_reader import read_safetensors
from penstock.weights.types import F32
from tests.oracles import hf, llamacpp
from tests.weights.official import (
    Official,
    decoded,
    load_back,
    official_checkpoint,
    official_config,
    write_shards,
)

LENGTH = 60
ROUNDING = 1e-5  # of the range of logits: float32 sums in another order

# llama.cpp rounds activations to the type of the weights, or to 8 bits; measured at a third of these.
LLAMACPP_ROUNDING = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2, "q8_0": 4e-2, "mxfp4": 4e-2, "mxfp4_q8_0": 4e-2}

Logits = NDArray[np.float32]


class Made(NamedTuple):
    folder: Path
    config: DeepseekV4Config
    model: DeepseekV4ForCausalLM
    ids: list[int]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A float32 Hugging Face folder."""
    config = hf.tiny_config()
    seed = hf.pick_seed(config, LENGTH)
    model = hf.random_model(config, seed)
    folder = tmp_path_factory.mktemp("hf") / "tiny"
    hf.save(model, folder)
    return Made(folder, config, model, hf.random_ids(config, LENGTH, seed))


@dataclass(frozen=True)
class Published:
    """A checkpoint in the official layout, and a text on which its trunk and draft block meet no near-tie."""

    made: Official
    config: DeepseekV4Config
    ids: list[int]

    @property
    def folder(self) -> Path:
        return self.made.folder

    @property
    def mtp(self) -> hf.Mtp:
        assert self.made.mtp is not None
        return self.made.mtp


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    config = official_config()
    folder = tmp_path_factory.mktemp("official") / "tiny"
    for seed in range(20):
        made = official_checkpoint(folder, config, seed, mtp=True)
        ids = hf.random_ids(config, LENGTH, seed)
        if hf.smallest_gap(made.model, ids, made.mtp) > hf.SAFE_GAP:
            return Published(made, config, ids)
    raise AssertionError("no seed without near-ties")


def engine_logits(path: Path, ids: list[int]) -> Logits:
    found = penstock.Engine(path, kv_dtype="f32", threads=1).session().feed(ids, logits="all")
    assert found is not None
    return found


def engine_mtp_logits(path: Path, ids: list[int], mtp: Path | None = None) -> Logits:
    engine = penstock.Engine(path, kv_dtype="f32", threads=1, mtp=mtp)
    session = engine.session()
    rows = []
    for token, following in pairwise(ids):
        session.feed([token], logits="none")
        rows.append(engine.mtp_logits(session, following))
    return np.stack(rows)


def distance(found: Logits, expected: Logits) -> float:
    """Largest difference as a part of the range of `expected`."""
    return float(np.abs(found - expected).max() / np.ptp(expected))


def types_in(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


def copied(published: Published, folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    """The checkpoint with some of its tensors changed."""
    tensors = dict(published.made.stored)
    edit(tensors)
    folder.mkdir()
    write_shards(folder, tensors, 2)
    shutil.copy(published.folder / "config.json", folder)
    return folder


# ── the same answers ──────────────────────────────────────────────────────────────────────────────────────


def test_f32_is_the_hugging_face_model(tiny: Made, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    report = convert(tiny.folder, path, "f32")
    expected = hf.logits(tiny.model, tiny.ids)
    assert distance(engine_logits(path, tiny.ids), expected) < ROUNDING
    assert distance(llamacpp.logits(path, tiny.ids), expected) < ROUNDING
    assert report.main.kept == report.main.tensors


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_computes_with_the_numbers_it_stores(mix: str, tmp_path: Path) -> None:
    config = hf.tiny_config()
    for seed in range(10):
        folder, path = tmp_path / f"{seed}", tmp_path / f"{seed}.gguf"
        hf.save(hf.random_model(config, seed), folder)
        convert(folder, path, mix)
        model, ids = load_back(config, path), hf.random_ids(config, LENGTH, seed)
        if hf.smallest_gap(model, ids) > hf.SAFE_GAP:
            break
    assert distance(engine_logits(path, ids), hf.logits(model, ids)) < ROUNDING
    llamacpp.loads(path)


@pytest.mark.parametrize("mix", MIXES)
def test_llamacpp_computes_the_same(mix: str, tmp_path: Path) -> None:
    """Nothing is chosen by score here, because llama.cpp's rounding would choose differently."""
    config = hf.tiny_config(num_hash_layers=6, index_topk=64)
    hf.save(hf.random_model(config, 0), tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "model.gguf", mix)
    ids = hf.random_ids(config, LENGTH, 0)
    expected = hf.logits(load_back(config, tmp_path / "model.gguf"), ids)
    assert distance(llamacpp.logits(tmp_path / "model.gguf", ids), expected) < LLAMACPP_ROUNDING[mix]


def test_bf16_folder_is_copied_bit_for_bit(tiny: Made, tmp_path: Path) -> None:
    hf.save(tiny.model, tmp_path / "hf", torch.bfloat16)
    report = convert(tmp_path / "hf", tmp_path / "model.gguf", "bf16")
    assert report.main.requantised == 0
    folder, file = (engine_logits(tmp_path / name, tiny.ids) for name in ("hf", "model.gguf"))
    assert np.array_equal(folder, file)


def test_all_layouts_of_one_model_give_the_same_file(tiny: Made, tmp_path: Path) -> None:
    state = tiny.model.state_dict()
    single = {}
    for name, tensor in state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            single[name] = tensor
            continue
        stem, _, leaf = name.rpartition(".")
        for number, matrix in enumerate(tensor):
            halves = matrix.chunk(2) if leaf == "gate_up_proj" else (matrix,)
            parts = ("gate_proj", "up_proj") if leaf == "gate_up_proj" else ("down_proj",)
            for part, half in zip(parts, halves, strict=True):
                single[f"{stem}.{number}.{part}.weight"] = half.clone()
    written = []
    for layout, tensors in {"saved": None, "stacked": state, "single": single}.items():
        folder = tmp_path / layout / "tiny"
        if tensors is None:
            shutil.copytree(tiny.folder, folder)
        else:
            folder.mkdir(parents=True)
            save_file(tensors, folder / "model.safetensors")
            shutil.copy(tiny.folder / "config.json", folder)
        convert(folder, tmp_path / f"{layout}.gguf", "q8_0")
        written.append((tmp_path / f"{layout}.gguf").read_bytes())
    assert written[0] == written[1] == written[2]


# ── the official layout ───────────────────────────────────────────────────────────────────────────────────


def test_official_folder_is_the_model_it_was_made_from(published: Published) -> None:
    checkpoint = open_checkpoint(published.folder)
    assert checkpoint.draft == "MTP"
    assert not checkpoint.unused
    assert {info.kind.name for info in checkpoint.index.values()} == {
        "FP8_E4M3",
        "FP4_E2M1",
        "BF16",
        "F32",
        "I64",
    }
    expected = published.made.model.model.layers[0].self_attn.q_b_proj.weight.detach().numpy()
    assert np.array_equal(checkpoint.weight("blk.0.attn_q_b.weight").decode(), expected)
    expected = hf.logits(published.made.model, published.ids)
    assert distance(engine_logits(published.folder, published.ids), expected) < ROUNDING
    expected = hf.mtp_logits(published.made.model, published.mtp, published.ids)
    assert distance(engine_mtp_logits(published.folder, published.ids), expected) < ROUNDING


def test_official_experts_survive_in_mxfp4(published: Published, tmp_path: Path) -> None:
    report = convert(published.folder, tmp_path / "model.gguf", "mxfp4")
    tensors = decoded(tmp_path / "model.gguf")
    for number, layer in enumerate(published.made.model.model.layers):
        gate, up = layer.mlp.experts.gate_up_proj.detach().chunk(2, dim=1)
        down = layer.mlp.experts.down_proj.detach()
        for part, expected in {"gate": gate, "up": up, "down": down}.items():
            assert np.array_equal(tensors[f"blk.{number}.ffn_{part}_exps.weight"], expected.numpy())
    requantised = {"attn_q_a", "attn_q_b", "attn_kv", "attn_output_a", "attn_output_b", "indexer.attn_q_b"}
    requantised |= {f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
    names = [name.split(".", 2)[-1].removesuffix(".weight") for name in tensors]
    assert report.main.requantised == sum(name in requantised for name in names)


def test_official_weights_survive_in_bf16(published: Published, tmp_path: Path) -> None:
    report = convert(published.folder, tmp_path / "model.gguf", "bf16")
    assert report.main.kept == report.main.tensors
    loaded = load_back(published.config, tmp_path / "model.gguf").state_dict()
    for name, tensor in published.made.model.state_dict().items():
        assert torch.equal(loaded[name], tensor), name


def test_draft_block_in_a_file_of_its_own(published: Published, tmp_path: Path) -> None:
    path, draft = tmp_path / "model.gguf", tmp_path / "mtp.gguf"
    report = convert(published.folder, path, "f32", mtp=draft)
    assert report.mtp is not None
    assert not report.notes
    expected = hf.mtp_logits(published.made.model, published.mtp, published.ids)
    assert distance(engine_mtp_logits(path, published.ids, draft), expected) < ROUNDING
    assert distance(llamacpp.mtp_logits(path, published.ids, draft=draft), expected) < ROUNDING


@pytest.mark.parametrize("mix", MIXES)
def test_draft_file_of_every_mix_loads(published: Published, tmp_path: Path, mix: str) -> None:
    path, draft = tmp_path / "model.gguf", tmp_path / "mtp.gguf"
    convert(published.folder, path, mix, mtp=draft)
    ids = published.ids[:20]
    ours, theirs = engine_mtp_logits(path, ids, draft), llamacpp.mtp_logits(path, ids, draft=draft)
    # One rounded score may send a row to other experts, so only the middle of the differences is compared.
    assert np.median(np.abs(ours - theirs)) / np.ptp(theirs) < LLAMACPP_ROUNDING[mix]


def test_shards_and_slabs_change_nothing(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(published.folder, tmp_path / "large.gguf", "mxfp4", mtp=tmp_path / "large-mtp.gguf")
    monkeypatch.setattr(recode, "SLAB_ELEMENTS", 1000)  # a few rows, across the edges of FP8 tiles
    convert(published.folder, tmp_path / "small.gguf", "mxfp4", mtp=tmp_path / "small-mtp.gguf")
    for large, small in (("large", "small"), ("large-mtp", "small-mtp")):
        assert (tmp_path / f"{large}.gguf").read_bytes() == (tmp_path / f"{small}.gguf").read_bytes()


def test_slabs_are_bounded(tmp_path: Path) -> None:
    save_file({"x": torch.ones(5000, 4096, dtype=torch.bfloat16)}, tmp_path / "x.safetensors")
    sizes = [chunk.nbytes for chunk in recode.recode(read_safetensors(tmp_path / "x.safetensors")["x"], F32)]
    assert max(sizes) <= 4 * recode.SLAB_ELEMENTS
    assert sum(sizes) == 5000 * 4096 * 4


# ── types and metadata ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mix", "experts", "linear", "ends", "small"),
    [
        ("f32", "F32", "F32", "F32", "F32"),
        ("f16", "F16", "F16", "F16", "F16"),
        ("bf16", "BF16", "BF16", "BF16", "BF16"),
        ("q8_0", "Q8_0", "Q8_0", "Q8_0", "BF16"),
        ("mxfp4", "MXFP4", "Q8_0", "BF16", "BF16"),
    ],
)
def test_types_of_a_mix(
    published: Published, tmp_path: Path, mix: str, experts: str, linear: str, ends: str, small: str
) -> None:
    report = convert(published.folder, tmp_path / "model.gguf", mix, mtp=tmp_path / "mtp.gguf")
    assert report.mtp is not None
    block = published.config.num_hidden_layers
    wanted = [
        (experts, "ffn_gate_exps ffn_up_exps ffn_down_exps"),
        (linear, "attn_q_a attn_q_b attn_kv attn_output_a attn_output_b indexer.attn_q_b nextn.eh_proj"),
        (linear, "ffn_gate_shexp ffn_up_shexp ffn_down_shexp"),
        (ends, "token_embd output"),
        (small, "ffn_gate_inp indexer.proj attn_compressor_kv attn_compressor_gate"),
        (small, "indexer_compressor_kv indexer_compressor_gate"),
        ("F32", "hc_attn_fn hc_ffn_fn output_hc_fn attn_compressor_ape indexer_compressor_ape"),
        ("I32", "ffn_gate_tid2eid"),
    ]
    leaves = {leaf: kind for kind, group in wanted for leaf in group.split()}
    for path in (tmp_path / "model.gguf", tmp_path / "mtp.gguf"):
        for tensor in gguf.GGUFReader(path).tensors:
            leaf = re.sub(r"^blk\.\d+\.", "", tensor.name).removesuffix(".weight")
            expected = "F32" if len(tensor.shape) == 1 else leaves[leaf]
            assert tensor.tensor_type.name == expected, tensor.name
    assert f"blk.{block}.nextn.eh_proj.weight" in types_in(tmp_path / "mtp.gguf")
    data = sum(tensor.n_bytes for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors)
    assert sum(report.main.bytes_by_type.values()) == data


@pytest.mark.parametrize(("dtype", "kind"), [(torch.float32, "F16"), (torch.bfloat16, "BF16")])
def test_rows_that_fill_no_block_fall_back(tmp_path: Path, dtype: torch.dtype, kind: str) -> None:
    config = hf.tiny_config(moe_intermediate_size=48)
    hf.save(hf.random_model(config, 0), tmp_path / "hf", dtype)
    report = convert(tmp_path / "hf", tmp_path / "model.gguf", "mxfp4")
    expected = {f"blk.{n}.ffn_down_{part}.weight": kind for n in range(6) for part in ("exps", "shexp")}
    assert report.main.fallbacks == expected
    assert any("12 tensors became" in note for note in report.notes)
    assert expected.items() <= types_in(tmp_path / "model.gguf").items()
    llamacpp.loads(tmp_path / "model.gguf")


def test_bias_of_a_hash_layer_is_left_out(published: Published, tmp_path: Path) -> None:
    bias = torch.ones(published.config.n_routed_experts)
    folder = copied(published, tmp_path / "vision", lambda all: all.update({"layers.0.ffn.gate.bias": bias}))
    report = convert(folder, tmp_path / "model.gguf", "mxfp4")
    assert report.left_out == ("blk.0.exp_probs_b.bias",)
    assert "blk.0.exp_probs_b.bias" in report.notes[-1]
    assert "blk.0.exp_probs_b.bias" not in types_in(tmp_path / "model.gguf")
    llamacpp.loads(tmp_path / "model.gguf")


def test_draft_modules_that_are_not_converted_are_named(published: Published, tmp_path: Path) -> None:
    report = convert(published.folder, tmp_path / "model.gguf", "mxfp4")
    assert report.draft == "MTP"
    assert "MTP block" in report.notes[0]

    def to_dspark(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("mtp.0.") and "_proj" in name]:
            del tensors[name]
        tensors["mtp.0.main_proj.weight"] = torch.ones(2, 2)

    folder = copied(published, tmp_path / "dspark", to_dspark)
    report = convert(folder, tmp_path / "dspark.gguf", "mxfp4")
    assert report.draft == "DSpark"
    assert "DSpark" in report.notes[0]
    with pytest.raises(ModelFormatError, match="found only a DSpark module"):
        convert(folder, tmp_path / "another.gguf", "mxfp4", mtp=tmp_path / "mtp.gguf")


def byte_level_tokenizer() -> dict[str, Any]:
    """A tokenizer.json of 290 tokens, fewer than the embedding has rows."""
    made = byte_tokenizer_metadata(290)
    tokens, kinds = made["tokenizer.ggml.tokens"], made["tokenizer.ggml.token_type"]
    special = [number for number, kind in enumerate(kinds) if kind != 1]
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": tokens[number], "special": True} for number in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(tokens) if number not in special},
            "merges": [merge.split(" ") for merge in made["tokenizer.ggml.merges"]],
        },
    }


def test_tokenizer_and_template_go_along(published: Published, tmp_path: Path) -> None:
    folder = copied(published, tmp_path / "with tokenizer", lambda _: None)
    (folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    path = tmp_path / "model.gguf"
    convert(folder, path, "mxfp4")
    fields = gguf.GGUFReader(path).fields
    assert fields["general.name"].contents() == "with tokenizer"
    assert fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_MXFP4_MOE
    assert fields["tokenizer.chat_template"].contents() == "{{ messages }}"
    assert fields["tokenizer.ggml.token_type"].types[-1] == gguf.GGUFValueType.INT32
    assert len(fields["tokenizer.ggml.tokens"].contents()) == published.config.vocab_size
    engine = penstock.Engine(path, threads=1)
    assert engine.tokenizer.decode(engine.tokenizer.encode("Grüße, 123")) == "Grüße, 123"
    assert (engine.config.bos_id, engine.config.eos_ids) == (0, (1, 2))
    llamacpp.loads(path)

    (folder / "chat_template.jinja").write_text("the newer one")
    convert(folder, path, "mxfp4", overwrite=True)
    assert gguf.GGUFReader(path).fields["tokenizer.chat_template"].contents() == "the newer one"


def test_without_a_tokenizer_the_ids_remain(published: Published, tmp_path: Path) -> None:
    convert(published.folder, tmp_path / "model.gguf", "mxfp4")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    assert fields["tokenizer.ggml.model"].contents() == "none"
    config, source = (open_checkpoint(path).config for path in (tmp_path / "model.gguf", published.folder))
    # GGUF keeps floats in single precision.
    assert (config.bos_id, config.eos_ids) == (0, (1,))
    assert config.layers == source.layers
    assert config.rms_eps == pytest.approx(source.rms_eps, rel=1e-7)


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty folder, to see that it stays so."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def test_full_disk(published: Published, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(out)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(OptionError, match=r"model\.gguf: [\d,]+ bytes are needed, 1,000,000 are free in "):
        convert(published.folder, out / "model.gguf", "f32")
    assert not list(out.iterdir())


def test_both_files_must_fit_together(
    published: Published, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = convert(published.folder, out / "model.gguf", "f32")
    (out / "model.gguf").unlink()
    enough_for_one = sum(report.main.bytes_by_type.values()) + (17 << 20)
    usage = shutil.disk_usage(out)._replace(free=enough_for_one)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    convert(published.folder, out / "model.gguf", "f32")
    (out / "model.gguf").unlink()
    with pytest.raises(OptionError, match="are free"):
        convert(published.folder, out / "model.gguf", "f32", mtp=out / "mtp.gguf")
    assert not list(out.iterdir())


def test_existing_file_needs_overwrite(published: Published, out: Path) -> None:
    path = out / "model.gguf"
    path.write_text("precious")
    with pytest.raises(OptionError, match="exists already"):
        convert(published.folder, path, "mxfp4")
    assert path.read_text() == "precious"
    convert(published.folder, path, "mxfp4", overwrite=True)
    open_checkpoint(path)


def test_bad_places_are_refused(published: Published, out: Path) -> None:
    shard = next(published.folder.glob("*.safetensors"))
    before = shard.read_bytes()
    for destination, message in [
        (out / "nowhere" / "model.gguf", "there is no folder"),
        (out, "found a folder"),
        (shard, "belongs to the checkpoint"),
    ]:
        with pytest.raises(OptionError, match=message):
            convert(published.folder, destination, "mxfp4", overwrite=True)
    with pytest.raises(OptionError, match="two different files"):
        convert(published.folder, out / "a.gguf", "mxfp4", mtp=out / "b" / ".." / "a.gguf")
    assert shard.read_bytes() == before
    assert not list(out.iterdir())


def test_bad_sources_are_refused(published: Published, out: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="expected one of f32, f16, bf16, q8_0, mxfp4"):
        convert(published.folder, out / "model.gguf", "q2_k")
    convert(published.folder, tmp_path / "model.gguf", "mxfp4")
    with pytest.raises(OptionError, match="convert takes a folder"):
        convert(tmp_path / "model.gguf", out / "model.gguf", "q8_0")
    with pytest.raises(ModelFormatError, match="no such file or folder"):
        convert(tmp_path / "nothing", out / "model.gguf", "q8_0")
    assert not list(out.iterdir())


def test_no_draft_block_to_convert(tiny: Made, out: Path) -> None:
    with pytest.raises(ModelFormatError, match="found none"):
        convert(tiny.folder, out / "model.gguf", "f32", mtp=out / "mtp.gguf")
    assert not list(out.iterdir())


def test_missing_tensor(published: Published, tmp_path: Path, out: Path) -> None:
    folder = copied(published, tmp_path / "x", lambda all: all.pop("layers.3.ffn.experts.5.w2.weight"))
    with pytest.raises(ModelFormatError, match=r"blk\.3\.ffn_down_exps\.5\.weight is missing"):
        convert(folder, out / "model.gguf", "mxfp4")
    assert not list(out.iterdir())


def changed(tiny: Made, folder: Path, name: str, value: float) -> Path:
    """The Hugging Face folder with one number changed."""
    shutil.copytree(tiny.folder, folder)
    (file,) = folder.glob("*.safetensors")
    tensors = load_file(file)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, file)
    return folder


@pytest.mark.parametrize(
    ("mix", "value", "message"),
    [
        ("f16", -70000.0, r"holds -70000, but F16 ends at 65504"),
        ("f16", float("nan"), r"holds nan"),
        ("bf16", 3.4e38, r"BF16 ends at 3\.38953e\+38"),
        ("q8_0", 1e7, r"Q8_0 ends at"),
        ("mxfp4", float("inf"), r"holds inf"),
    ],
)
def test_numbers_a_type_cannot_hold(
    tiny: Made, tmp_path: Path, out: Path, mix: str, value: float, message: str
) -> None:
    name = next(
        n for n in load_file(next(tiny.folder.glob("*.safetensors"))) if "layers.2." in n and "q_b" in n
    )
    folder = changed(tiny, tmp_path / "x", name, value)
    with pytest.raises(ModelFormatError, match=rf"tensor blk\.2\.attn_q_b\.weight: .*{message}"):
        convert(folder, out / "model.gguf", mix)
    assert not list(out.iterdir())


def test_numbers_at_the_edge_of_a_type(tiny: Made, tmp_path: Path) -> None:
    name = next(
        n for n in load_file(next(tiny.folder.glob("*.safetensors"))) if "layers.2." in n and "q_b" in n
    )
    folder = changed(tiny, tmp_path / "x", name, 65504.0)
    convert(folder, tmp_path / "model.gguf", "f16")
    assert decoded(tmp_path / "model.gguf")["blk.2.attn_q_b.weight"].max() == 65504


def test_damaged_scale_of_an_expert(published: Published, tmp_path: Path, out: Path) -> None:
    def damage(tensors: dict[str, Tensor]) -> None:
        name = "layers.1.ffn.experts.2.w3.scale"
        tensors[name] = tensors[name].clone()
        tensors[name].view(torch.uint8)[0, 0] = 255

    folder = copied(published, tmp_path / "x", damage)
    for mix in ("mxfp4", "q8_0"):
        with pytest.raises(ModelFormatError, match=r"blk\.1\.ffn_up_exps\.2\.weight"):
            convert(folder, out / "model.gguf", mix)
    assert not list(out.iterdir())


def test_expert_number_outside_the_model(published: Published, tmp_path: Path, out: Path) -> None:
    def damage(tensors: dict[str, Tensor]) -> None:
        tensors["layers.0.ffn.gate.tid2eid"] = tensors["layers.0.ffn.gate.tid2eid"].clone()
        tensors["layers.0.ffn.gate.tid2eid"][7, 0] = 8

    folder = copied(published, tmp_path / "x", damage)
    with pytest.raises(ModelFormatError, match=r"tid2eid\.weight: entry 8, expected expert numbers below 8"):
        convert(folder, out / "model.gguf", "mxfp4")
    assert not list(out.iterdir())


def test_interruption_leaves_nothing(published: Published, out: Path) -> None:
    seen: list[str] = []

    def stop(done: int, total: int, _tensor: str) -> None:
        if done > total // 2:  # the draft file is complete by then, the main file is not
            seen.extend(sorted(path.name for path in out.iterdir()))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(published.folder, out / "model.gguf", "mxfp4", mtp=out / "mtp.gguf", progress=stop)
    assert seen == ["model.gguf.part", "mtp.gguf"]
    assert not list(out.iterdir())


def test_progress_counts_every_byte(published: Published, out: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    report = convert(
        published.folder,
        out / "model.gguf",
        "mxfp4",
        mtp=out / "mtp.gguf",
        progress=lambda *call: calls.append(call),
    )
    assert report.mtp is not None
    total = sum(report.main.bytes_by_type.values()) + sum(report.mtp.bytes_by_type.values())
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)
    assert calls[-1][:2] == (total, total)
    assert {call[1] for call in calls} == {total}
    assert set(types_in(out / "model.gguf")) <= {call[2] for call in calls}


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(convert_command)
    return app


def test_command_prints_a_report(app: typer.Typer, published: Published, out: Path) -> None:
    arguments = [str(published.folder), str(out / "model.gguf"), "--mix", "mxfp4"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "MXFP4" in done.stdout
    assert "--mtp FILE" in done.stdout
    done = CliRunner().invoke(app, [*arguments, "--json", "--force", "--mtp", str(out / "mtp.gguf")])
    report = json.loads(done.stdout)
    assert report["mtp"]["path"] == str(out / "mtp.gguf")
    assert report["main"]["tensors"] == len(types_in(out / "model.gguf"))


def test_command_errors_are_ours(app: typer.Typer, published: Published, out: Path) -> None:
    arguments = [str(published.folder), str(out / "model.gguf"), "--mix"]
    done = CliRunner().invoke(app, [*arguments, "q3"])
    assert isinstance(done.exception, OptionError)
    assert "mxfp4" in str(done.exception)
    (out / "model.gguf").touch()
    assert isinstance(CliRunner().invoke(app, [*arguments, "mxfp4"]).exception, OptionError)
