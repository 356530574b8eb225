"""Opening models: splits, draft blocks in every place they are found, and files that do not check out."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import ModelFormatError
from penstock.weights.convert import convert
from penstock.weights.gguf_reader import read_gguf
from penstock.weights.gguf_writer import PlannedTensor
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from penstock.weights.tensor import Weight
from penstock.weights.types import F32, I32
from tests.oracles import hf
from tests.weights.official import official_checkpoint, official_config
from tests.weights.rewrite import Metadata, Tensors, planned, rewrite, split


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.gguf"
    synth(path, width="tiny", layers=3, ratios=(0, 4, 128), hash_layers=1, mix="q8_0")
    return path


def logits(path: Path, **options: Any) -> np.ndarray[Any, Any]:
    found = penstock.Engine(path, **options).session().feed(list(range(3, 43)), logits="all")
    assert found is not None
    return found


def array(name: str, values: np.ndarray[Any, Any], kind: Any = F32) -> PlannedTensor:
    data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    return PlannedTensor(name, kind, values.shape, lambda: [data])


# ── splits ────────────────────────────────────────────────────────────────────────────────────────────────


def test_splits_are_one_model(model: Path, tmp_path: Path) -> None:
    paths = split(model, tmp_path, 3)
    assert np.array_equal(logits(paths[0]), logits(model))
    assert open_checkpoint(paths[0]).fingerprint() == open_checkpoint(model).fingerprint()


def test_split_mistakes(model: Path, tmp_path: Path) -> None:
    paths = split(model, tmp_path, 3)
    with pytest.raises(
        ModelFormatError, match=r"this is split 2 of 3; open the first one, .*m-00001-of-00003"
    ):
        open_checkpoint(paths[1])
    shutil.copy(paths[0], tmp_path / "renamed.gguf")
    with pytest.raises(ModelFormatError, match="the name is not NAME-00001-of-00003"):
        open_checkpoint(tmp_path / "renamed.gguf")
    shutil.copy(paths[1], paths[2])
    with pytest.raises(ModelFormatError, match=r"split\.no/split\.count do not say 2 of 3"):
        open_checkpoint(paths[0])
    paths[2].unlink()
    with pytest.raises(ModelFormatError, match="split 3 of 3 is missing"):
        open_checkpoint(paths[0])


def test_split_tensor_counts(model: Path, tmp_path: Path) -> None:
    paths = split(model, tmp_path, 2)

    def lose_one(_: Metadata, tensors: Tensors) -> None:
        del tensors[next(iter(tensors))]

    rewrite(paths[1], tmp_path / "x.gguf", lose_one).replace(paths[1])
    with pytest.raises(ModelFormatError, match=r"split\.tensors\.count is \d+, but the splits hold"):
        open_checkpoint(paths[0])


# ── draft blocks ──────────────────────────────────────────────────────────────────────────────────────────


class Drafted:
    """A model with an MTP block in each of the layouts that circulate."""

    def __init__(self, folder: Path):
        self.official = official_checkpoint(folder / "official", official_config(), 3, mtp=True)
        self.trunk, self.only = folder / "trunk.gguf", folder / "only.gguf"
        convert(self.official.folder, self.trunk, "f32", mtp=self.only)
        self.layers = official_config().num_hidden_layers
        self.sidecar = rewrite(self.only, folder / "sidecar.gguf", self._to_sidecar)
        self.same_file = rewrite(self.trunk, folder / "same.gguf", self._add_block)

    def _to_sidecar(self, metadata: Metadata, tensors: Tensors) -> None:
        """Only `mtp.0.*`, projections apart, own names for the mixing head."""
        metadata.clear()
        metadata["general.architecture"] = "deepseek4_mtp"
        names = {
            "nextn.enorm.weight": "enorm.weight",
            "nextn.hnorm.weight": "hnorm.weight",
            "nextn.shared_head_norm.weight": "norm.weight",
        }
        block = f"blk.{self.layers}."
        result: Tensors = {}
        for name, tensor in tensors.items():
            leaf = name.removeprefix(block)
            if leaf == "nextn.eh_proj.weight":
                both = Weight(read_gguf(self.only).tensors[name]).decode()
                hidden = both.shape[0]
                result["e"] = array("mtp.0.e_proj.weight", both[:, :hidden])
                result["h"] = array("mtp.0.h_proj.weight", both[:, hidden:])
            elif leaf != name:
                result[leaf] = PlannedTensor(
                    f"mtp.0.{names.get(leaf, leaf)}", tensor.kind, tensor.shape, tensor.chunks
                )
            elif name.startswith("output_hc_"):
                leaf = name.removeprefix("output_hc_")
                result[name] = PlannedTensor(
                    f"mtp.0.hc_head_{leaf}", tensor.kind, tensor.shape, tensor.chunks
                )
        tensors.clear()
        tensors.update(result)

    def _add_block(self, metadata: Metadata, tensors: Tensors) -> None:
        """The block as one more layer of the main file; the mixing head is then the trunk's."""
        extra = read_gguf(self.only)
        for key, value in extra.metadata.items():
            if key.startswith("deepseek4."):
                metadata[key] = value
        for name, info in extra.tensors.items():
            if name.startswith(f"blk.{self.layers}."):
                tensors[name] = planned(name, info)

    def mtp_logits(self, path: Path, mtp: Path | None = None) -> np.ndarray[Any, Any]:
        engine = penstock.Engine(path, kv_dtype="f32", mtp=mtp)
        session = engine.session()
        rows = []
        for token, following in pairwise(range(5, 30)):
            session.feed([token], logits="none")
            rows.append(engine.mtp_logits(session, following))
        return np.stack(rows)


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> Drafted:
    return Drafted(tmp_path_factory.mktemp("drafted"))


def test_every_place_for_a_draft_block(drafted: Drafted) -> None:
    expected = drafted.mtp_logits(drafted.official.folder)
    for found in (
        drafted.mtp_logits(drafted.trunk, drafted.sidecar),
        drafted.mtp_logits(drafted.trunk, drafted.only),
    ):
        assert np.abs(found - expected).max() < 1e-4 * np.ptp(expected)
    assert open_checkpoint(drafted.trunk).draft is None
    assert open_checkpoint(drafted.same_file).draft == "MTP"
    assert open_checkpoint(drafted.trunk, drafted.sidecar).draft == "MTP"


def test_a_block_in_the_main_file_shares_the_mixing_head(drafted: Drafted) -> None:
    from tests.oracles import llamacpp

    ids = list(range(5, 30))
    found = drafted.mtp_logits(drafted.same_file)
    expected = llamacpp.mtp_logits(drafted.same_file, ids)
    assert np.abs(found - expected).max() < 1e-5 * np.ptp(expected)
    assert open_checkpoint(drafted.same_file).config.layer_count == drafted.layers


def test_the_trunk_does_not_care_about_a_draft_block(drafted: Drafted) -> None:
    plain = logits(drafted.trunk)
    assert np.array_equal(logits(drafted.same_file), plain)
    assert np.array_equal(logits(drafted.trunk, mtp=drafted.sidecar), plain)
    with_draft = open_checkpoint(drafted.trunk, drafted.sidecar)
    assert with_draft.fingerprint() == open_checkpoint(drafted.trunk).fingerprint()


def test_the_draft_state_is_exact_too(drafted: Drafted, tmp_path: Path) -> None:
    """Chunks, rewinding, forking and saving leave no trace in what the draft block predicts."""
    engine = penstock.Engine(drafted.official.folder, max_rewind=16)
    ids = hf.random_ids(official_config(), 60, 1)
    once, many = engine.session(), engine.session()
    once.feed(ids, logits="none")
    for token in ids[:50]:
        many.feed([token], logits="none")
    many.feed(hf.random_ids(official_config(), 9, 2), logits="none")
    many.rewind(9)
    many.feed(ids[50:], logits="none")
    expected = engine.mtp_logits(once, 7)
    assert np.array_equal(engine.mtp_logits(many, 7), expected)
    assert np.array_equal(engine.mtp_logits(many.fork(), 7), expected)
    many.save(tmp_path / "s")
    assert np.array_equal(engine.mtp_logits(engine.load_session(tmp_path / "s"), 7), expected)
    assert np.array_equal(engine.mtp_logits(once, 7), expected)  # asking changes nothing


def test_a_claimed_but_absent_draft_block_is_ignored(model: Path, tmp_path: Path) -> None:
    def claim(metadata: Metadata, _: Tensors) -> None:
        metadata["deepseek4.nextn_predict_layers"] = 1

    path = rewrite(model, tmp_path / "m.gguf", claim)
    assert open_checkpoint(path).draft is None
    assert open_checkpoint(path).config.layer_count == 3


def test_a_dspark_module_that_is_not_whole_is_recognised_and_not_used(model: Path, tmp_path: Path) -> None:
    def add(_: Metadata, tensors: Tensors) -> None:
        tensors["x"] = array("mtp.0.main_proj.weight", np.ones((4, 4), np.float32))

    opened = open_checkpoint(rewrite(model, tmp_path / "m.gguf", add))
    assert (opened.draft, opened.has_mtp) == ("DSpark", False)
    assert list(opened.unused) == ["mtp.0.main_proj.weight"]


def test_sidecar_mistakes(model: Path, drafted: Drafted, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="no draft block for a 3-layer model"):
        open_checkpoint(model, model)
    with pytest.raises(ModelFormatError, match="no such file"):
        open_checkpoint(model, tmp_path / "nothing.gguf")
    with pytest.raises(ModelFormatError, match=r"tensor mtp\.0\..*: shape"):
        open_checkpoint(model, drafted.sidecar)


# ── files that do not check out ───────────────────────────────────────────────────────────────────────────


def _drop(name: str) -> Any:
    return lambda _, tensors: tensors.pop(name)


def _replace(name: str, values: np.ndarray[Any, Any], kind: Any = F32) -> Any:
    return lambda _, tensors: tensors.__setitem__(name, array(name, values, kind))


def _set(key: str, value: Any) -> Any:
    return lambda metadata, _: metadata.__setitem__(key, value)


TABLE = "blk.0.ffn_gate_tid2eid.weight"
BAD: dict[str, tuple[Any, str]] = {
    "other architecture": (
        _set("general.architecture", "llama"),
        "architecture 'llama', expected 'deepseek4'",
    ),
    "no architecture": (_set("general.architecture", 5), "architecture 5, expected 'deepseek4'"),
    "no blocks": (_set("deepseek4.block_count", 0), "block_count is 0, expected 1 to"),
    "a billion blocks": (_set("deepseek4.block_count", 10**9), "block_count is 1000000000"),
    "more blocks than tensors": (_set("deepseek4.block_count", 4), "an array of at least 4 numbers"),
    "no embedding": (_drop("token_embd.weight"), r"tensor token_embd\.weight is missing"),
    "no head": (_drop("output.weight"), r"tensor output\.weight is missing, expected shape \[512, 256\]"),
    "no expert matrix": (
        _drop("blk.1.ffn_up_exps.weight"),
        r"tensor blk\.1\.ffn_up_exps\.0\.weight is missing",
    ),
    "no compressor": (
        _drop("blk.2.attn_compressor_kv.weight"),
        r"blk\.2\.attn_compressor_kv\.weight is missing",
    ),
    "no router bias": (_drop("blk.1.exp_probs_b.bias"), r"tensor blk\.1\.exp_probs_b\.bias is missing"),
    "wrong shape": (
        _replace("blk.0.attn_norm.weight", np.ones(255, np.float32)),
        r"tensor blk\.0\.attn_norm\.weight: shape \[255\], expected \[256\]",
    ),
    "integers as weights": (
        _replace("blk.0.attn_norm.weight", np.ones(256, np.int32), I32),
        "type I32, expected a weight type",
    ),
    "weights as a table": (_replace(TABLE, np.zeros((512, 4), np.float32)), "type F32, expected I32 or I64"),
    "expert out of range": (
        _replace(TABLE, np.full((512, 4), np.arange(13, 17), np.int32), I32),
        r"token 0 maps to experts \[13, 14, 15, 16\], expected ids below 16",
    ),
    "negative expert": (
        _replace(TABLE, np.full((512, 4), [-1, 0, 1, 2], np.int32), I32),
        "expected ids below 16",
    ),
    "same expert twice": (
        _replace(TABLE, np.full((512, 4), [3, 1, 3, 2], np.int32), I32),
        r"token 0 maps to experts \[3, 1, 3, 2\], expected distinct ids",
    ),
    "NaN hyper-parameter": (_set("deepseek4.expert_weights_scale", float("nan")), "routed_scale is nan"),
    "EOS outside": (_set("tokenizer.ggml.eos_token_id", 99999), "BOS/EOS id 99999 is outside the vocabulary"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_models(name: str, model: Path, tmp_path: Path) -> None:
    edit, message = BAD[name]
    path = rewrite(model, tmp_path / "m.gguf", edit)
    with pytest.raises(ModelFormatError, match=message) as caught:
        penstock.Engine(path)
    assert str(path) in str(caught.value)


def test_a_truncated_file(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    path = tmp_path / "m.gguf"
    for keep in (10, 1000, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:keep])
        with pytest.raises(ModelFormatError, match=str(path)):
            penstock.Engine(path)


def test_folders_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"no config\.json in the folder"):
        open_checkpoint(tmp_path)


def test_a_grouped_projection_in_three_dimensions(model: Path, tmp_path: Path) -> None:
    def reshape(_: Metadata, tensors: Tensors) -> None:
        for name, old in list(tensors.items()):
            if name.endswith("attn_output_a.weight"):
                tensors[name] = PlannedTensor(
                    name, old.kind, (2, old.shape[0] // 2, old.shape[1]), old.chunks
                )

    path = rewrite(model, tmp_path / "m.gguf", reshape)
    assert np.array_equal(logits(path), logits(model))


def test_another_quantisation_has_another_fingerprint(model: Path, tmp_path: Path) -> None:
    synth(tmp_path / "m.gguf", width="tiny", layers=3, ratios=(0, 4, 128), hash_layers=1, mix="q8_0", seed=1)
    assert open_checkpoint(tmp_path / "m.gguf").fingerprint() != open_checkpoint(model).fingerprint()
