"""Models that are here: what is listed, what a name finds, what is deleted."""

import json
from pathlib import Path

import pytest

import penstock
from penstock.errors import HubError, ModelFormatError, OptionError
from penstock.hub import pull
from penstock.hub.find import find_model
from penstock.hub.library import draft_beside, find_local, local_models
from penstock.hub.pull import look_up
from penstock.hub.reference import parse_reference
from penstock.hub.remove import bytes_of, remove
from penstock.pocket import pocket_path
from penstock.weights.convert import convert
from tests.hub.server import Hub, Repo
from tests.weights.official import official_checkpoint, official_config
from tests.weights.rewrite import split


def fetch(name: str, with_draft: bool = False) -> Path:
    return pull.pull(look_up(parse_reference(name)), with_draft)


def names() -> list[str]:
    return [model.name for model in local_models()]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "data" / "penstock" / "models"
    folder.mkdir(parents=True)
    return folder


# ── finding ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_three_places(hub: Hub, own: Path) -> None:
    hub.repos["a/b-GGUF"] = Repo(
        {"M-Q4_K_M.gguf": b"4" * 2000, "M-Q8_0.gguf": b"8" * 3000, "M-MTP.gguf": b"m" * 1500}
    )
    hub.repos["a/c"] = Repo({"config.json": b"{}", "model.safetensors": b"s" * 2000})
    fetch("a/b-GGUF:Q8_0")
    fetch("a/c")
    (own / "mine.gguf").write_bytes(b"x")
    (own / "deep" / "er").mkdir(parents=True)
    (own / "deep" / "er" / "other.gguf").write_bytes(b"x")
    (own / "checkpoint").mkdir()
    (own / "checkpoint" / "config.json").write_text("{}")
    (own / "checkpoint" / "model.safetensors").write_bytes(b"x")
    assert names() == ["pocket", "mine", "other", "checkpoint", "a/b-GGUF:Q8_0", "a/c"]


def test_a_folder_of_models_that_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "m.gguf").write_bytes(b"x")
    monkeypatch.setenv("PENSTOCK_MODELS", str(tmp_path / "elsewhere"))
    assert names() == ["pocket", "m"]


def test_incomplete_models_are_none(hub: Hub, own: Path) -> None:
    hub.repos["a/c"] = Repo(
        {
            "config.json": b"{}",
            "model-1.safetensors": b"1" * 2000,
            "model-2.safetensors": b"2" * 2000,
            "model.safetensors.index.json": json.dumps(
                {"weight_map": {n: f"model-{n}.safetensors" for n in (1, 2)}}
            ).encode(),
        }
    )
    folder = fetch("a/c")
    assert names() == ["pocket", "a/c"]
    (folder / "model-2.safetensors").unlink()
    assert names() == ["pocket"]
    (own / "m-00001-of-00002.gguf").write_bytes(b"x")
    (own / "n.gguf").symlink_to(own / "nothing")
    assert names() == ["pocket"]


def test_names_and_parts_of_names(hub: Hub, own: Path) -> None:
    hub.repos["some/Model-GGUF"] = Repo({"M-Q4_K_M.gguf": b"4" * 2000, "M-Q8_0.gguf": b"8" * 3000})
    four, eight = fetch("some/Model-GGUF:Q4_K_M"), fetch("some/Model-GGUF:Q8_0")
    (own / "q8.gguf").write_bytes(b"x")
    for name in ("some/Model-GGUF:Q4_K_M", "q4_k_m", "Q4", "k_m"):
        assert find_model(name) == four
    assert find_model("q8_0") == eight
    assert find_model("q8") == own / "q8.gguf"  # a whole name goes before the beginning of another
    assert find_model("pock") == pocket_path()
    with pytest.raises(
        HubError, match=r"'some' could be any of these models:\n  some/Model-GGUF:Q4_K_M\n  some/Mod"
    ):
        find_model("some")


def test_a_path_goes_before_a_name(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "m.gguf").write_bytes(b"x")
    (tmp_path / "m").write_bytes(b"y")
    assert find_model("m") == own / "m.gguf"
    monkeypatch.chdir(tmp_path)
    assert find_model("m") == Path("m")
    Path("pocket").mkdir()  # holds no model
    assert find_model("pocket") == pocket_path()


def test_what_is_not_here() -> None:
    with pytest.raises(HubError, match=r"q2: not here yet; `penstock pull q2` downloads it from antirez/"):
        find_model("q2")
    with pytest.raises(ModelFormatError, match=r"^nothing\.gguf: no such file or folder$"):
        find_model("nothing.gguf")
    with pytest.raises(
        ModelFormatError, match=r"no model that `penstock models` lists is called so; hf:a/b asks"
    ):
        find_model("a/b")


def test_commands_that_only_look_download_nothing(hub: Hub) -> None:
    hub.repos["a/b"] = Repo({"m.gguf": b"4" * 2000})
    with pytest.raises(
        HubError, match=r"hf:a/b is not here; `penstock pull a/b` downloads it, and with --dry-run"
    ):
        find_model("hf:a/b", download=False)
    assert not hub.log
    path = find_model("hf:a/b")
    hub.log.clear()
    assert find_model("hf:a/b", download=False) == find_model("hf:a/b:m.gguf") == path
    assert not hub.log  # what is here is used without asking


def test_a_part_of_a_name_is_the_hubs_to_tell(hub: Hub) -> None:
    hub.repos["a/b"] = Repo({"M-UD-Q2_K_XL.gguf": b"x" * 2000, "M-Q2_K.gguf": b"2" * 2000})
    fetch("a/b:UD-Q2_K_XL")
    assert find_model("hf:a/b:Q2_K").name == "M-Q2_K.gguf"


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────


def test_an_engine_of_splits_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    parts = split(pocket_path(), tmp_path, 3)
    hub.repos["a/b"] = Repo({f"Q4/{part.name}": part.read_bytes() for part in parts})
    with penstock.Engine("hf:a/b") as engine, penstock.Engine(pocket_path()) as expected:
        assert engine.checkpoint.fingerprint() == expected.checkpoint.fingerprint()
        assert engine.checkpoint.path.name == parts[0].name


def test_a_draft_block_beside_the_model_is_found_when_it_is_demanded(hub: Hub, tmp_path: Path) -> None:
    official_checkpoint(tmp_path / "official", official_config(), 0, mtp=True)
    trunk, draft = tmp_path / "Tiny-Q8_0.gguf", tmp_path / "Tiny-MTP-Q8_0.gguf"
    convert(tmp_path / "official", trunk, "q8_0", mtp=draft)
    hub.repos["a/b"] = Repo({path.name: path.read_bytes() for path in (trunk, draft)})
    path = fetch("a/b")
    assert draft_beside(path) is None
    with pytest.raises(OptionError, match="has no MTP block"):
        penstock.Engine("hf:a/b", draft="mtp", load=False)
    assert fetch("a/b", with_draft=True) == path
    assert draft_beside(path) == path.with_name(draft.name)
    with penstock.Engine("hf:a/b", draft="mtp", load=False) as engine:
        assert engine.checkpoint.has_mtp
    with penstock.Engine("hf:a/b", load=False) as engine:
        assert not engine.checkpoint.has_mtp


# ── deleting ──────────────────────────────────────────────────────────────────────────────────────────────


def test_bytes_that_another_file_links_to_stay(hub: Hub, places: Path) -> None:
    hub.repos["a/b"] = Repo({"M-Q4_K_M.gguf": b"4" * 2000, "M-Q8_0.gguf": b"8" * 3000})
    fetch("a/b:Q4_K_M")
    hub.repos["a/b"].files["README.md"] = b"new"  # another commit with the same files
    fetch("a/b:Q4_K_M")
    fetch("a/b:Q8_0")
    folder = places / "models--a--b"
    assert len(list((folder / "snapshots").iterdir())) == 2
    model = find_local("q4")
    assert model is not None
    assert bytes_of(model.files) == 2000
    remove(model.files)
    assert bytes_of([folder / "blobs"]) == 5000  # the older snapshot still has it
    older = find_local("q4")
    assert older is not None
    remove(older.files)
    assert bytes_of([folder / "blobs"]) == 3000
    assert names() == ["pocket", "a/b:Q8_0"]
    begun = folder / "blobs" / "0.incomplete"
    begun.write_bytes(b"the beginning of something else")
    last = find_local("q8")
    assert last is not None
    remove(last.files)
    assert list((folder / "blobs").iterdir()) == [begun]
    begun.unlink()
    fetch("a/b:Q8_0")
    remove([fetch("a/b:Q8_0")])
    assert not folder.exists()


def test_a_store_that_blobs_link_to_is_left_alone(hub: Hub, places: Path) -> None:
    hub.repos["a/b"] = Repo({"m.gguf": b"4" * 2000})
    path = fetch("a/b")
    blob, store = path.resolve(), places / "store"
    blob.rename(store)
    blob.symlink_to(store)
    assert find_model("hf:a/b") == path
    remove([path])
    assert store.stat().st_size == 2000
    assert not (places / "models--a--b").exists()
