"""Machines that do not fit are refused before any work, with a sentence that says who has what."""

from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.cluster.agreement import PROTOCOL, Described, Hello, Terms, check, hello
from penstock.cluster.split import Machine, model_head_layers, parse_layers, said_layers, split
from penstock.errors import ClusterError, OptionError
from penstock.pocket import pocket_path
from penstock.weights.opening import open_checkpoint
from penstock.weights.synth import plan_synth, write_synth
from tests.cluster.machines import Hired, open_head

MODEL = open_checkpoint(pocket_path())
OWN = Described.of(MODEL)


def said(**changed: object) -> Hello:
    found = hello(MODEL, OWN, None, None, 1 << 30, 0.1)
    return Hello.read({**found, **changed})


def test_the_same_model_is_welcome() -> None:
    check(OWN, True, said())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("fingerprint", "f" * 32, "another model: the model with fingerprint ffff"),
        ("layers", 43, "layers 43 there, 8 on the head"),
        ("types", "Q8_0", r"weights of type Q8_0 there, [\w, ]+ on the head"),
        ("vocabulary", 9, "tokens in the vocabulary 9 there"),
    ],
)
def test_another_model_is_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        check(OWN, True, said(model={**said().model, name: value}))


def test_another_protocol_is_refused_whatever_else_it_says() -> None:
    with pytest.raises(ClusterError, match=rf"protocol 99 \(penstock 7.0\), the head has {PROTOCOL}"):
        Hello.read({"protocol": 99, "version": "7.0", "name": "old"})


def test_a_draft_block_must_be_there_if_the_head_has_one() -> None:
    with pytest.raises(ClusterError, match="no draft block"):
        check(OWN, True, said(draft=False))
    check(OWN, False, said(draft=False))


@pytest.mark.parametrize("layers", [[1, 2], None, "1", "2:1", "0:3,2:5", {"1": 2}])
def test_what_cannot_be_layers_is_refused(layers: object) -> None:
    with pytest.raises(ClusterError, match="layers"):
        said(layers=layers)


def test_terms_come_back_as_they_were() -> None:
    terms = Terms(512, 64, "f16", False, False, True, 256, 1, "bf16", 20.0)
    assert Terms.read(terms.fields()) == terms
    with pytest.raises(ClusterError, match="context"):
        Terms.read({**replace(terms).fields(), "context": "512"})


# ── layers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def tiled(*layers: str, count: int = 8) -> list[tuple[int, str]]:
    machines = [Machine(f"m{number}", parse_layers(each)) for number, each in enumerate(layers)]
    return [(number, said_layers(tile)) for number, tile in split(machines, [100] * count)]


def test_layers_that_were_said() -> None:
    assert tiled("0:3", "3:8") == [(0, "0:3"), (1, "3:8")]
    assert tiled("0:3", "6:8", "3:6") == [(0, "0:3"), (2, "3:6"), (1, "6:8")]
    assert tiled("0:2,4:6", "2:4,6:8") == [(0, "0:2,4:6"), (1, "2:4,6:8")]
    assert tiled("0:1,5:6", "3:5,7:8", "1:3,6:7") == [(0, "0:1,5:6"), (2, "1:3,6:7"), (1, "3:5,7:8")]


def test_layers_that_were_left_open() -> None:
    assert tiled("auto", "auto") == [(0, "0:4"), (1, "4:8")]
    assert tiled("0:2", "auto", "auto") == [(0, "0:2"), (1, "2:5"), (2, "5:8")]
    assert tiled("auto", "5:8", "auto") == [(0, "0:3"), (2, "3:5"), (1, "5:8")]
    assert tiled("auto", "3:5", "auto") == [(0, "0:3"), (1, "3:5"), (2, "5:8")]
    assert tiled("0:1,4:5", "auto") == [(0, "0:1,4:5"), (1, "1:4,5:8")]
    assert tiled("0:1,4:5", "auto", "2:4,6:8") == [(0, "0:1,4:5"), (1, "1:2,5:6"), (2, "2:4,6:8")]


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (("0:3", "4:8"), "layers 3:4 nowhere"),
        (("0:5", "4:8"), "layers 4:5 twice"),
        (("0:3", "3:9"), "layers up to 9"),
        (("4:8", "0:4"), "the head without the first ones"),
        (("0:8", "auto"), "no layers for m1"),
        (("auto",) * 9, "9 stages, but the model has 8 layers"),
        (("0:2,4:6", "2:8"), "m1 needs as many stretches as the head"),
        (("auto", "0:2,4:6"), "m1 needs as many stretches as the head"),
        (("0:2,4:6", "2:4,6:7"), "layers 7:8 nowhere"),
        (("0:2,4:6", "2:5,6:8"), "layers up to 5"),
        (("0:2,2:4", "auto"), "no layers for m1"),
        (("0:1,3:4", "1:2,5:8", "2:3,4:5"), "take turns in another order"),
        (("0:1,2:3,4:5", "auto", "auto"), "3 stages that take 3 turns, but the model has 8 layers"),
    ],
)
def test_layers_that_do_not_make_up_the_model_are_refused(layers: tuple[str, ...], words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        tiled(*layers)


def test_a_faster_machine_and_one_with_more_memory_take_more() -> None:
    fast = [Machine("slow", layer_seconds=0.3), Machine("fast", layer_seconds=0.1)]
    assert [len(tile) for _, (tile,) in split(fast, [100] * 40)] == [10, 30]
    large = [Machine("small", memory=1000), Machine("large", memory=1 << 40)]
    assert [len(tile) for _, (tile,) in split(large, [100] * 40)] == [10, 30]


def test_the_last_machine_has_fewer_layers_for_the_head_of_the_model() -> None:
    machines = [Machine("first"), Machine("middle"), Machine("last")]
    assert [len(tile) for _, (tile,) in split(machines, [100] * 40, 5.0)] == [15, 15, 10]
    said = [Machine("first"), Machine("last", (range(30, 40),))]
    assert [len(tile) for _, (tile,) in split(said, [100] * 40, 5.0)] == [30, 10]


def test_the_head_of_the_model_counts_by_the_bytes_that_a_token_reads() -> None:
    index, config = MODEL.index, MODEL.config
    whole = sum(info.total_bytes for name, info in index.items() if name.startswith("blk."))
    experts = sum(
        info.total_bytes for name, info in index.items() if name.startswith("blk.") and "_exps." in name
    )
    layer = (whole - experts * (1 - config.experts_used / config.experts)) / config.layer_count
    assert model_head_layers(MODEL) == pytest.approx(index["output.weight"].total_bytes / layer)


@pytest.mark.parametrize("text", ["21", "5:3", "a:b", ":", "3:3", "-1:4", "0:4,3:5", "0:4,"])
def test_what_is_no_range_of_layers(text: str) -> None:
    with pytest.raises(OptionError, match="two numbers such as 21:43"):
        parse_layers(text)


# ── in a real cluster ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_with_another_model_hears_why(tmp_path: Path) -> None:
    write_synth(plan_synth(), tmp_path / "other.gguf")
    engine, port = open_head(pocket_path(), 2, context=256)
    worker = Hired(tmp_path / "other.gguf", port)
    worker.wait()
    assert "the head refuses this worker" in str(worker.failure)
    assert "another model" in str(worker.failure)
    engine.close()


def test_a_worker_with_layers_that_do_not_fit_hears_why() -> None:
    engine, port = open_head(pocket_path(), 2, context=256, layers="0:4")
    worker = Hired(pocket_path(), port, layers="5:8")
    worker.wait()
    assert "the head 0:4" in str(worker.failure)
    assert "layers 4:5 nowhere" in str(worker.failure)
    right = Hired(pocket_path(), port, layers="4:8")
    engine.load()
    session = engine.session()
    assert session.feed([5, 6]) is not None
    engine.close()
    right.wait()


def test_one_too_many_is_sent_away() -> None:
    engine, port = open_head(pocket_path(), 2, context=256)
    first = Hired(pocket_path(), port)
    engine.load()
    second = Hired(pocket_path(), port)
    second.wait()
    assert "all 2 stages are here already" in str(second.failure)
    engine.close()
    first.wait()


def test_a_worker_without_the_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one secret, long enough")
    (tmp_path / "other").write_text("another secret, long enough")
    engine, port = open_head(pocket_path(), 2, context=256, secret=tmp_path / "one")
    worker = Hired(pocket_path(), port, secret=tmp_path / "other")
    worker.wait()
    assert "secret the same on both sides" in str(worker.failure)
    engine.close()


def test_a_worker_whose_memory_is_too_small_says_so() -> None:
    engine, port = open_head(pocket_path(), 2, context=1024)
    worker = Hired(pocket_path(), port, memory="8MiB")
    worker.wait()
    assert "cannot run here: memory is 8" in str(worker.failure)
    better = Hired(pocket_path(), port)  # the head has gone on
    engine.load()
    engine.close()
    better.wait()


@pytest.mark.parametrize("address", ["nowhere", "host:", ":80", "host:99999", "host:x"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(OptionError, match="expected HOST:PORT"):
        penstock.Engine(pocket_path(), cluster=address, load=False)
