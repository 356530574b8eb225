"""Workers that compute experts: answers are the same bits, whoever comes, goes or fails."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

import penstock
from penstock.cluster.agreement import PROTOCOL, Hello, Terms
from penstock.cluster.control import Control
from penstock.cluster.expert_worker import HeldExperts, extents, parse_share
from penstock.cluster.helpers import Helper, Helpers
from penstock.cluster.members import Member
from penstock.cluster.message import Message
from penstock.cluster.share import Share
from penstock.cluster.shared_experts import SharedExperts
from penstock.engine.engine import Engine
from penstock.errors import OptionError, ReadError
from penstock.pocket import pocket_path
from penstock.weights.opening import open_checkpoint
from tests.cluster.machines import Hired, open_head

IDS = list(range(100, 260))
GREEDY = penstock.Sampling(temperature=0, ignore_eos=True)


def helpers(engine: Engine) -> list[dict[str, Any]]:
    """Those that are ready."""
    return [each for each in engine.stats()["cluster"]["members"] if "experts" in each]


def wait_for(engine: Engine, count: int) -> None:
    while len(helpers(engine)) != count:
        time.sleep(0.02)


@contextmanager
def helped(*shares: float, **options: Any) -> Iterator[Engine]:
    """An engine with expert workers."""
    engine, port = open_head(pocket_path(), 1, context=1024, **options)
    workers = [Hired(pocket_path(), port, share=share) for share in shares]
    try:
        engine.load()
        wait_for(engine, len(shares))
        yield engine
    finally:
        engine.close()
        for worker in workers:
            worker.wait()
            assert worker.failure is None


def told(engine: Engine) -> list[Any]:
    session = engine.session()
    found = [session.feed(IDS[:100], logits="all"), session.feed([7]), session.feed([8, 9, 10], logits="all")]
    return [*found, engine.mtp_logits(session, 5)]


def same(one: list[Any], other: list[Any]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    with Engine(pocket_path(), threads=1, context=1024, memory=None, learn="off") as engine:
        return told(engine)


@pytest.mark.parametrize("shares", [(0.0,), (0.3, 0.5)])
def test_answers_are_the_same_bits(shares: tuple[float, ...], expected: list[Any]) -> None:
    with helped(*shares) as engine:
        assert same(told(engine), expected)
        members = helpers(engine)
        assert all(each["pairs"] > 0 for each in members)
        held = [number for each in members for number in range(*each["experts"])]
        assert len(held) == len(set(held))


def test_the_head_may_stream_its_own_experts(expected: list[Any]) -> None:
    with helped(0.5, memory="200MiB", streaming="direct") as engine:
        assert engine.plan.mode == "direct"
        assert same(told(engine), expected)


def test_workers_come_and_go_while_an_answer_grows() -> None:
    with Engine(pocket_path(), threads=1, context=1024, memory=None, learn="off") as alone:
        answer = [step.token for step in alone.generate(IDS, 40, GREEDY)]
    engine, port = open_head(pocket_path(), 1, context=1024)
    engine.load()
    workers, found = [], []
    for number, step in enumerate(engine.generate(IDS, 40, GREEDY)):
        found.append(step.token)
        if number in (5, 20):
            workers.append(Hired(pocket_path(), port, share=0.5))
            wait_for(engine, len(workers))
        if number in (12, 30):
            assert engine.machines is not None
            assert engine.machines.head.helpers is not None
            helper, *_ = engine.machines.head.helpers.ready
            assert helper.pairs > 0
            helper._group.break_up("the wire is cut")  # it comes again by itself
            wait_for(engine, len(workers))
    engine.close()
    for worker in workers:
        worker.wait()
    assert found == answer


def test_what_a_worker_fails_to_do_is_done_by_the_head(
    expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def failing(*asked: Any) -> Any:
        calls.append(asked)
        raise ReadError("the disk is tired")

    monkeypatch.setattr(HeldExperts, "_terms", failing)
    with helped(0.5) as engine:
        assert same(told(engine), expected)
        assert calls


def test_an_answer_of_another_shape_is_not_taken(
    expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldExperts, "_terms", lambda *_: np.ones((1, 3), np.float32))
    with helped(0.5) as engine:
        assert same(told(engine), expected)
        assert helpers(engine)[0]["pairs"] == 0


def test_a_worker_that_is_lost_while_it_is_asked(
    expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, broken = Helper.ask, [True]

    def cut(self: Helper, *what: Any) -> Any:
        found = ask(self, *what)
        if broken:
            broken.clear()
            self._group.break_up("the wire is cut")
        return found

    monkeypatch.setattr(Helper, "ask", cut)
    with helped(0.5) as engine:
        assert same(told(engine), expected)
        assert not broken


# ── who is welcome ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("stages", "share", "memory", "words"),
    [
        (2, 0.5, None, "expert workers help one that has them all, --stages 1"),
        (1, None, None, "the head runs all layers itself"),
        (1, 0.5, "8MiB", "has room for no expert of every layer"),
    ],
)
def test_a_worker_that_is_of_no_use_hears_why(
    stages: int, share: float | None, memory: str | None, words: str
) -> None:
    engine, port = open_head(pocket_path(), stages, context=256)
    worker = Hired(pocket_path(), port, share=share, memory=memory)
    worker.wait()
    assert words in str(worker.failure)
    engine.close()


def test_one_too_many_is_sent_away() -> None:
    with helped(0.0) as engine:
        assert engine.machines is not None
        second = Hired(pocket_path(), engine.machines.head.address[1], share=0.1)
        second.wait()
        assert "all experts are with other workers already" in str(second.failure)


@pytest.mark.parametrize(
    ("fields", "arrays"),
    [
        ({}, {}),
        ({"block": "blk.99"}, {"ids": np.zeros((1, 2), np.int64)}),
        ({"block": "blk.1"}, {"ids": np.full((1, 2), 31, np.int64)}),  # not among its own
        ({"block": "blk.1"}, {"ids": np.full((1, 2), -1, np.int64)}),
        ({"block": "blk.1"}, {"ids": np.full((1, 2), 1 << 40, np.int64)}),
        ({"block": "blk.1"}, {"ids": np.zeros((2, 2), np.int64)}),
        ({"block": "blk.1"}, {"ids": np.zeros((1, 2), np.int64), "x": np.zeros((1, 5), np.float32)}),
        ({"block": "blk.1"}, {"ids": np.zeros((1, 2), np.int64), "x": np.zeros((1, 256), np.float64)}),
    ],
)
def test_questions_that_make_no_sense_are_answered_with_an_error(
    fields: dict[str, Any], arrays: dict[str, Any]
) -> None:
    from penstock.backend import open_backend
    from penstock.cluster.agreement import Terms

    checkpoint = open_checkpoint(pocket_path())
    terms = Terms(512, 64, "f16", False, False, True, 256, 1, "bf16", 20.0)
    held = HeldExperts(checkpoint, open_backend("cpu", 1), range(4), terms)
    good = {"x": np.zeros((1, checkpoint.config.hidden), np.float32), "weights": np.zeros((1, 2), np.float32)}
    answer = held.compute(Message("terms", {"number": 3, **fields}, {**good, **arrays} if arrays else {}))
    assert "error" in answer.fields
    assert answer.fields["number"] == 3


def test_a_worker_reads_its_own_experts_only() -> None:
    checkpoint = open_checkpoint(pocket_path())
    config, size = checkpoint.config, 0
    for _, first, end in extents(checkpoint, range(2)):
        size += end - first
    whole = sum(info.nbytes for name, info in checkpoint.index.items() if "_exps." in name)
    assert size == whole * 2 // config.experts


@pytest.mark.parametrize(("text", "share"), [("auto", 0.0), ("0.4", 0.4), ("40%", 0.4), ("1", 1.0)])
def test_shares_as_people_write_them(text: str, share: float) -> None:
    assert parse_share(text, "--experts") == share


@pytest.mark.parametrize("text", ["0", "2", "-1", "x", "%", "nan", "150%"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(OptionError, match="expected auto, or a share"):
        parse_share(text, "--experts")


# ── the share that is left to a worker ────────────────────────────────────────────────────────────────────────────


def played(share: Share, rows: int, experts: int, speed: float, message: float) -> int:
    """Layers one after another: both sides work, the worker so many times as fast and with a message besides."""
    for _ in range(200):
        there = share.count(rows)
        here, away = float(experts - there), there / speed + message
        share.learn(rows, here, max(0.0, away - here), max(0.0, here - away))
    return share.count(rows)


def test_both_sides_end_at_the_same_time() -> None:
    assert played(Share(128), 1, 128, 1.0, 0.0) == pytest.approx(64, abs=2)
    assert played(Share(128), 1, 128, 3.0, 0.0) == pytest.approx(96, abs=2)
    assert played(Share(40), 1, 128, 3.0, 0.0) == 40  # it has no more
    assert played(Share(128), 1, 128, 1.0, 1000.0) == 1  # the link is too slow for it


def test_decoding_and_prompts_are_learned_apart() -> None:
    share = Share(128)
    assert played(share, 1, 128, 1.0, 1000.0) == 1
    assert played(share, 500, 128, 1.0, 0.0) == pytest.approx(64, abs=2)
    assert share.now[0] == 1


def layers(share: Share, rows: int, count: int, alone: float, together: float, noise: float = 0.0) -> int:
    """So many layers, of which each takes so many seconds without the worker and with it.  How many had it."""
    random, verdict, usual, helped = np.random.default_rng(3), share.verdict(rows), 0.0, 0
    for _ in range(count):
        trial = verdict.is_due()
        helped += (with_it := share.count(rows, trial) > 0)
        seconds = (together if with_it else alone) * (1 + noise * random.uniform(-1, 1))
        if trial and usual:
            verdict.tried(usual, seconds)
        elif not trial:
            usual = seconds
    return helped


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("rows", [1, 500])
def test_a_worker_that_makes_it_slower_is_left_out(rows: int, noise: float) -> None:
    share = Share(128)
    layers(share, rows, 200, 1.0, 1.15, noise)
    assert share.count(rows) == 0
    assert layers(share, rows, 1000, 1.0, 1.15, noise) < 60  # trials


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_worker_that_helps_is_kept(noise: float) -> None:
    share = Share(128)
    layers(share, 1, 200, 1.0, 0.8, noise)
    assert share.count(1) > 0
    assert layers(share, 1, 1000, 1.0, 0.8, noise) > 940


def test_a_worker_comes_back_when_it_helps_again() -> None:
    share = Share(128)
    layers(share, 1, 500, 1.0, 1.2)
    assert share.now[0] == 0
    assert share.now[1] > 0  # prompts are another matter
    layers(share, 1, 3000, 1.0, 0.7)
    assert share.now[0] > 0


def test_a_worker_whose_part_does_not_pay_changes_no_answer(
    expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine it is slower with it, says the clock."""
    learn = SharedExperts._learn

    def slow(self: SharedExperts, rows: int, seconds: float, trial: Helper | None) -> None:
        del seconds
        (helper,) = self._helpers()
        learn(self, rows, 1.0 + (helper.share.count(rows, helper is trial) > 0), trial)

    monkeypatch.setattr(SharedExperts, "_learn", slow)
    with helped(0.5) as engine:
        for _ in range(3):
            assert same(told(engine), expected)
        assert helpers(engine)[0]["experts_taken"] == {"decode": 0, "prefill": 0}


class Silent:
    """A control connection behind which nobody says a word."""

    there = here = "127.0.0.1"

    def send(self, message: Message) -> None: ...
    def close(self) -> None: ...


def test_the_end_waits_for_a_worker_that_is_being_set_up() -> None:
    """Its thread would be in gloo's code when the interpreter ends."""
    silent = Helpers(open_checkpoint(pocket_path()), None)
    silent.start(Terms(512, 8, "f16", False, False, False, 64, 1, "f32", timeout=30.0))
    said = Hello(PROTOCOL, "", "silent", {}, False, None, None, 1 << 30, 0.0, 0.5)
    silent.join(Member(cast("Control", Silent()), said))
    silent.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "penstock-helper"]
