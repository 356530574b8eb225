"""Conversion keeps the model: what a GGUF file computes is what its checkpoint folder said, for every mix and
every layout, in Penstock, in Hugging Face's implementation and in llama.cpp."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import penstock
from penstock.errors import ModelFormatError
from penstock.tokenizer import byte_tokenizer_metadata
from penstock.weights import recode
from penstock.weights.convert import convert
from penstock.weights.mixes import MIXES
from penstock.weights.opening import open_checkpoint
from penstock.weights.safetensors_reader import read_safetensors
from penstock.weights.types import F32
from tests.oracles import hf, llamacpp
from tests.weights.converting import (
    FEW_BITS,
    INPUTS_ROUNDED,
    LENGTH,
    LLAMACPP_ROUNDING,
    ROUNDING,
    Made,
    Published,
    copied,
    distance,
    engine_logits,
    engine_mtp_logits,
    types_in,
)
from tests.weights.official import (
    decoded,
    load_back,
)

# ── the same answers ──────────────────────────────────────────────────────────────────────────────────────


def test_f32_is_the_hugging_face_model(tiny: Made, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    report = convert(tiny.folder, path, "f32")
    expected = hf.logits(tiny.model, tiny.ids)
    assert distance(engine_logits(path, tiny.ids), expected) < ROUNDING
    assert distance(llamacpp.logits(path, tiny.ids), expected) < ROUNDING
    assert report.main.kept == report.main.tensors


def widths(mix: str) -> dict[str, int]:
    """Experts whose rows are whole blocks of 256, where a mix has types with such."""
    return {"hidden_size": 256, "moe_intermediate_size": 256} if mix in FEW_BITS else {}


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_computes_with_the_numbers_it_stores(mix: str, tmp_path: Path) -> None:
    config = hf.tiny_config(**widths(mix))
    for seed in range(10):
        folder, path = tmp_path / f"{seed}", tmp_path / f"{seed}.gguf"
        hf.save(hf.random_model(config, seed), folder)
        convert(folder, path, mix)
        model, ids = load_back(config, path), hf.random_ids(config, LENGTH, seed)
        if hf.smallest_gap(model, ids) > hf.SAFE_GAP:
            break
    assert distance(engine_logits(path, ids), hf.logits(model, ids)) < INPUTS_ROUNDED
    llamacpp.loads(path)


@pytest.mark.parametrize("mix", MIXES)
def test_llamacpp_computes_the_same(mix: str, tmp_path: Path) -> None:
    """Nothing is chosen by score here, because llama.cpp's rounding would choose differently."""
    config = hf.tiny_config(num_hash_layers=6, index_topk=64, **widths(mix))
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
    assert distance(engine_logits(published.folder, published.ids), expected) < INPUTS_ROUNDED
    expected = hf.mtp_logits(published.made.model, published.mtp, published.ids)
    assert distance(engine_mtp_logits(published.folder, published.ids), expected) < INPUTS_ROUNDED


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
    assert {name: got for name, (_, got) in report.main.fallbacks.items()} == expected
    (note,) = (note for note in report.notes if "12 tensors became" in note)
    assert f"{kind} instead of MXFP4, {kind} instead of Q8_0" in note
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
