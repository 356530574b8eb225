"""DSpark modules: what they guess is what plain numpy says, and what they remember is what was read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.session import Session
from penstock.errors import OptionError
from penstock.model.deepseek_v4.dspark import DSparkModule
from penstock.weights.names import DFLASH_FIRST, DFLASH_LAST, from_safetensors
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import synth
from tests.cluster.machines import cluster
from tests.drafting import force_drafts
from tests.engine.clients import prompt
from tests.model.dspark_reference import Reference

DRAWN = (
    Sampling(temperature=0, ignore_eos=True),
    Sampling(temperature=1, seed=3, top_p=0.9, ignore_eos=True),
    Sampling(temperature=0, repetition_penalty=1.3, ignore_eos=True),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("dspark") / "m.gguf"
    synth(path, width="tiny", ratios=(0, 4, 128, 4), mix="f16", dspark=3)
    return path


@pytest.fixture(scope="module")
def plain(model: Path) -> Engine:
    return Engine(model, context=512, prefill_chunk=64, draft="off")


@pytest.fixture
def engine(model: Path) -> Engine:
    return Engine(model, context=512, prefill_chunk=64, draft="dspark", kv_dtype="f32")


class Seen:
    """Features of the trunk as the module gets them, by position."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.rows: dict[int, Any] = {}
        self._latest: dict[int, Any] = {}
        see, follow = DSparkModule.see, DSparkModule.follow

        def seeing(module: DSparkModule, layer: int, streams: Any, batch: Any) -> None:
            if layer in module.watched:
                self._latest[layer - module.watched.start] = streams.array.mean(axis=1).astype(np.float64)
            see(module, layer, streams, batch)

        def following(module: DSparkModule, step: Any, batch: Any) -> None:
            assert sorted(self._latest) == [0, 1, 2]
            together = np.concatenate([self._latest[number] for number in range(3)], axis=1)
            self.rows.update(zip(step.positions.tolist(), together, strict=True))
            follow(module, step, batch)

        monkeypatch.setattr(DSparkModule, "see", seeing)
        monkeypatch.setattr(DSparkModule, "follow", following)

    def before(self, position: int) -> Any:
        return np.stack([self.rows[number] for number in range(position)])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def agrees(engine: Engine, session: Session, seen: Seen, first: int = 0) -> None:
    reference = Reference(engine.checkpoint)
    for token in (7, 300):
        found = engine.stepper.draft(session, token, 5, 0.0)
        wanted = reference.drafts(seen.before(session.position), token, first)
        assert [guess for guess, _ in found] == [guess for guess, _ in wanted]
        np.testing.assert_allclose([c for _, c in found], [c for _, c in wanted], rtol=2e-3)


@pytest.mark.parametrize("length", [1, 5, 40, 200])
def test_guesses_are_those_of_plain_numpy(engine: Engine, seen: Seen, length: int) -> None:
    """In the beginning, with windows that are not full, and with full ones."""
    session = engine.session()
    session.feed(prompt(length, length))
    agrees(engine, session, seen)


def test_windows_that_fill_and_are_left_for_shorter_ones(engine: Engine, seen: Seen) -> None:
    """One engine, with fewer rows before a block than a window has, more of them and fewer again."""
    session = engine.session()
    for count in (3, 4, 20, 30):
        session.feed(prompt(count, count))
        agrees(engine, session, seen)
    session = engine.session()
    session.feed(prompt(8, 6))
    agrees(engine, session, seen)


def test_windows_follow_text_and_rewinding(engine: Engine, seen: Seen) -> None:
    session = engine.session()
    session.feed(prompt(1, 70))
    for token in range(9):
        session.feed([token])
    session.feed([3, 4, 5, 6])
    agrees(engine, session, seen)
    session.rewind(7)
    agrees(engine, session, seen)
    session.feed([100, 101])
    agrees(engine, session.fork(), seen)


def test_a_module_that_did_not_keep_up_knows_what_it_followed_since(engine: Engine, seen: Seen) -> None:
    session = engine.session()
    session.feed(prompt(2, 30))
    engine.stepper.keep_up(False)
    for token in (5, 6, 7):
        session.feed([token])
    engine.stepper.keep_up(True)
    for token in (8, 9):
        session.feed([token])
    agrees(engine, session, seen, first=33)


def test_unlikely_guesses_are_left_out(engine: Engine) -> None:
    session = engine.session()
    session.feed(prompt(3, 30))
    every = engine.stepper.draft(session, 9, 5, 0.0)
    assert engine.stepper.draft(session, 9, 2, 0.0) == every[:2]
    first, second = every[0][1], every[0][1] * every[1][1]
    assert engine.stepper.draft(session, 9, 5, (first + second) / 2) == every[:2]


@pytest.mark.parametrize("sampling", DRAWN, ids=range(len(DRAWN)))
def test_text_and_session_are_the_same(
    model: Path, plain: Engine, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    force_drafts(monkeypatch)
    drafting = Engine(model, context=512, prefill_chunk=64, draft="dspark")
    assert drafting.drafters == ("dspark",)
    sessions = plain.session(), drafting.session()
    one, other = (
        list(engine.generate(prompt(4, 50), 60, sampling, session))
        for engine, session in zip((plain, drafting), sessions, strict=True)
    )
    assert one == other
    stats = drafting.stats()["draft"]
    assert stats["drafted"]["dspark"][4] > 0
    theirs, ours = (session.state.tensors() for session in sessions)
    for name, rows in theirs.items():
        np.testing.assert_array_equal(rows, ours[name])
    # The module's own windows are those of a session that read the text and guessed nothing.
    reader = drafting.session()
    reader.feed(sessions[1].tokens)
    read = reader.state.tensors()
    for name in ours.keys() - theirs.keys():
        np.testing.assert_array_equal(read[name], ours[name], err_msg=name)


def test_guesses_come_from_the_last_stage_of_a_cluster(
    model: Path, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_drafts(monkeypatch)
    wanted = list(plain.generate(prompt(5, 30), 30, DRAWN[0]))
    with cluster(model, 2, context=512, draft="dspark", layers="0:1") as staged:
        assert list(staged.generate(prompt(5, 30), 30, DRAWN[0])) == wanted
        assert sum(staged.stats()["draft"]["drafted"]["dspark"]) > 0


def test_experts_of_its_stages_may_come_from_disk(
    model: Path, plain: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is asked for; of itself the module is left out there."""
    force_drafts(monkeypatch)
    tight: dict[str, Any] = {"context": 256, "streaming": "direct", "learn": "off"}
    least = Engine(model, draft="dspark", load=False, **tight).plan.smallest
    with Engine(model, draft="dspark", memory=least + (1 << 20), **tight) as engine:
        assert engine.plan.mode == "direct"
        assert list(engine.generate(prompt(7, 30), 30, DRAWN[0])) == list(
            plain.generate(prompt(7, 30), 30, DRAWN[0])
        )
        assert sum(engine.stats()["draft"]["drafted"]["dspark"]) > 0
    auto = Engine(model, memory=least + (1 << 20), load=False, **tight)
    assert auto.drafters == ("ngram",)
    assert not auto.checkpoint.has_draft


def test_auto_has_the_module_where_there_is_one(model: Path) -> None:
    assert Engine(model, load=False).drafters == ("ngram", "dspark")
    assert Engine(model, load=False, draft="ngram").drafters == ("ngram",)


def test_who_asks_for_what_is_not_there_hears_it(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"draft is 'mtp', but .* has no MTP block"):
        Engine(model, draft="mtp", load=False)
    synth(tmp_path / "none.gguf", width="tiny", mix="f16")
    with pytest.raises(OptionError, match=r"draft is 'dspark', but .* has no DSpark module"):
        Engine(tmp_path / "none.gguf", draft="dspark", load=False)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_of_published_checkpoints() -> None:
    found = {
        "mtp.0.main_proj.weight": "mtp.0.main_proj.weight",
        "mtp.0.main_norm.weight": "mtp.0.main_norm.weight",
        "mtp.2.markov_head.markov_w1.weight": "mtp.2.markov_w1.weight",
        "mtp.2.markov_head.markov_w2.weight": "mtp.2.markov_w2.weight",
        "mtp.2.confidence_head.proj.weight": "mtp.2.conf_proj.weight",
        "mtp.2.hc_head_fn": "mtp.2.hc_head_fn.weight",
        "mtp.1.attn.wkv.weight": "mtp.1.attn_kv.weight",
        "mtp.1.ffn.experts.3.w2.weight": "mtp.1.ffn_down_exps.3.weight",
    }
    assert {name: from_safetensors(name) for name in found} == found


@pytest.fixture(scope="module")
def apart(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model in two files: the trunk, and the module under llama.cpp's names."""
    import gguf

    folder = tmp_path_factory.mktemp("apart")
    theirs = {f"mtp.0.{ours}": name for name, ours in DFLASH_FIRST.items()}
    theirs |= {f"mtp.2.{ours}": name for name, ours in DFLASH_LAST.items()}
    reader = gguf.GGUFReader(model)
    files = {"trunk": gguf.GGUFWriter(folder / "trunk.gguf", "deepseek4")}
    files["module"] = gguf.GGUFWriter(folder / "module.gguf", "dflash")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind, inner = field.types[0], field.types[-1] if len(field.types) > 1 else None
            files["trunk"].add_key_value(field.name, field.contents(), kind, inner)
    for tensor in reader.tensors:
        is_draft = tensor.name.startswith("mtp.")
        name = theirs.get(tensor.name, tensor.name.replace("mtp.", "blk.")) if is_draft else tensor.name
        files["module" if is_draft else "trunk"].add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    for writer in files.values():
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return folder / "trunk.gguf", folder / "module.gguf"


def test_a_module_in_a_file_of_its_own(engine: Engine, apart: tuple[Path, Path]) -> None:
    trunk, module = apart
    assert open_checkpoint(trunk).draft is None
    opened = open_checkpoint(trunk, module)
    assert opened.has_dspark
    assert opened.draft_blocks == ["mtp.0", "mtp.1", "mtp.2"]
    whole, parts = engine, Engine(trunk, mtp=module, context=512, draft="dspark", kv_dtype="f32")
    found = []
    for each in (whole, parts):
        session = each.session()
        session.feed(prompt(6, 40))
        found.append(each.stepper.draft(session, 5, 5, 0.0))
    assert found[0] == found[1]
