"""However many stages a model has, its answers are the same bits, and so is what sessions remember."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.cluster.split import parse_layers
from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from tests.cluster.machines import cluster

IDS = list(range(100, 400))


@pytest.fixture(scope="module")
def whole() -> Iterator[Engine]:
    with Engine(pocket_path(), threads=1, context=1024, memory=None, learn="off") as engine:
        yield engine


@pytest.fixture(scope="module", params=["1", "2", "3", "4", "2, by turns", "3, by turns"])
def staged(request: pytest.FixtureRequest) -> Iterator[Engine]:
    count, _, turns = request.param.partition(",")
    layers = {"2": "0:2,3:5,6:7", "3": "0:1,4:5"}[count] if turns else "auto"
    common: dict[str, Any] = {"context": 1024, "prefill_chunk": 64, "draft": "mtp"}
    with cluster(pocket_path(), int(count), layers=layers, **common) as engine:
        yield engine


def test_logits_are_the_same_bits(whole: Engine, staged: Engine) -> None:
    one, many = whole.session(), staged.session()
    assert np.array_equal(one.feed(IDS, logits="all"), many.feed(IDS, logits="all"))  # type: ignore[arg-type]
    for token in (5, 6):
        assert np.array_equal(one.feed([token]), many.feed([token]))  # type: ignore[arg-type]


def test_several_sessions_in_one_step(whole: Engine, staged: Engine) -> None:
    def fed(engine: Engine) -> list[object]:
        work = [(engine.session(), IDS[:70]), (engine.session(), IDS[50:53]), (engine.session(), IDS[9:150])]
        return list(engine.feed(work, logits="all"))

    for one, many in zip(fed(whole), fed(staged), strict=True):
        assert np.array_equal(one, many)  # type: ignore[arg-type]


def test_rewind_fork_and_reset(whole: Engine, staged: Engine) -> None:
    def told(engine: Engine) -> list[object]:
        session = engine.session()
        session.feed(IDS[:200])
        session.rewind(30)
        branch = session.fork()
        found = [branch.feed([9, 8, 7]), session.feed([1, 2])]
        session.rewind(session.position)
        return [*found, session.feed(IDS[7:90])]

    for one, many in zip(told(whole), told(staged), strict=True):
        assert np.array_equal(one, many)  # type: ignore[arg-type]


def test_what_the_draft_block_expects(whole: Engine, staged: Engine) -> None:
    one, many = whole.session(), staged.session()
    one.feed(IDS)
    many.feed(IDS)
    assert np.array_equal(whole.mtp_logits(one, 7), staged.mtp_logits(many, 7))


def assert_guesses(found: list[tuple[int, float]], wanted: list[tuple[int, float]]) -> None:
    """The same tokens; chances, of one native call or from logits one by one, may differ in their last bit."""
    assert [token for token, _ in found] == [token for token, _ in wanted]
    assert [chance for _, chance in found] == pytest.approx([chance for _, chance in wanted], rel=1e-5)


def test_drafts_come_with_logits(whole: Engine, staged: Engine) -> None:
    """Also after drafts of which some were right, and none for a token that nobody expected."""
    for engine in (whole, staged):  # answers of others may have left the block aside
        engine.stepper.keep_up(True)
    one, many = whole.session(), staged.session()
    one.feed(IDS)
    many.feed(IDS)
    asked = staged.stepper.draft(many, 7, 3, 0.0)  # from the next step on
    assert staged.options.stages == 1 or asked == []
    for number in range(4):
        token = int(np.argmax(one.feed([7 + number])))  # type: ignore[arg-type]
        many.feed([7 + number])
        assert_guesses(staged.stepper.draft(many, token, 3, 0.0), whole.stepper.draft(one, token, 3, 0.0))
    right = int(np.argmax(one.feed([token])))  # type: ignore[arg-type]
    many.feed([token, right, (right + 1) % 4096], "all")
    many.rewind(1)
    after = int(np.argmax(one.feed([right])))  # type: ignore[arg-type]
    assert_guesses(staged.stepper.draft(many, after, 3, 0.0), whole.stepper.draft(one, after, 3, 0.0))
    many.feed([after])
    one.feed([after])
    if staged.options.stages > 1:
        assert staged.stepper.draft(many, (after + 1) % 4096, 3, 0.0) == []


def test_a_saved_session_belongs_to_the_model_and_not_to_the_stages(
    whole: Engine, staged: Engine, tmp_path: Path
) -> None:
    one, many = whole.session(), staged.session()
    one.feed(IDS)
    many.feed(IDS)
    one.save(tmp_path / "one")
    many.save(tmp_path / "many")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
    expected = one.feed([3])
    for engine in (whole, staged):
        for name in ("one", "many"):
            assert np.array_equal(engine.load_session(tmp_path / name).feed([3]), expected)  # type: ignore[arg-type]


def test_sessions_stay_while_weights_are_away(whole: Engine, staged: Engine) -> None:
    one, many = whole.session(), staged.session()
    one.feed(IDS)
    many.feed(IDS)
    staged.park()
    assert staged.parked
    assert np.array_equal(one.feed([3]), many.feed([3]))  # type: ignore[arg-type]


SAMPLINGS = {
    "greedy": penstock.Sampling(temperature=0),
    "drawn": penstock.Sampling(
        temperature=0.8, seed=3, top_p=0.9, repetition_penalty=1.2, logit_bias={5: 2.0}
    ),
    "listed": penstock.Sampling(temperature=0, top_logprobs=3),
}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_last_stage_chooses_as_the_head_would(whole: Engine, staged: Engine, name: str) -> None:
    one, many = (list(engine.generate(IDS[:40], 24, SAMPLINGS[name])) for engine in (whole, staged))
    assert one == many


def test_sixteen_bits_between_stages_change_no_greedy_answer(whole: Engine) -> None:
    with cluster(pocket_path(), 3, context=1024, boundary="bf16") as staged:
        for question in ("What is 17 + 25?", "What is a penstock?", "Sort: 9 4 7 1"):
            prompt = whole.tokenizer.encode(question)
            one, many = (
                [step.token for step in engine.generate(prompt, 24, SAMPLINGS["greedy"])]
                for engine in (whole, staged)
            )
            assert one == many
        assert staged.fingerprint != whole.fingerprint  # what it remembers is not the same to the bit


def test_a_stage_has_its_layers_only(staged: Engine) -> None:
    if staged.options.stages == 1:
        return
    layers = [parse_layers(member["layers"]) or () for member in staged.stats()["cluster"]["members"]]
    in_turn = [number for turn in zip(*layers, strict=True) for stretch in turn for number in stretch]
    assert in_turn == list(range(staged.config.layer_count))
    blocks = {f"blk.{number}" for stretch in layers[0] for number in stretch}
    assert {
        ".".join(name.split(".")[:2]) for name in staged.loader.part.index if name.startswith("blk")
    } == blocks
    assert "output.weight" not in staged.loader.part.index
    assert all(
        series.name.startswith(tuple(f"{block}." for block in blocks))
        for series in staged.loader.layout.series
    )


def test_experts_stream_from_each_stages_disk(whole: Engine) -> None:
    with cluster(pocket_path(), 2, context=512, memory="200MiB", streaming="direct") as staged:
        assert staged.plan.mode == "direct"
        one, many = whole.session(), staged.session()
        assert np.array_equal(one.feed(IDS[:80]), many.feed(IDS[:80]))  # type: ignore[arg-type]
