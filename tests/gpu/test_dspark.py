"""A DSpark module on the card: its guesses are the CPU's, and text and sessions are the same with them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.engine.engine import Engine
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.engine.session import Session
from penstock.errors import BudgetError
from penstock.weights.synth import SynthPlan, synth, write_synth
from penstock.weights.widths import FLASH, Width
from tests.drafting import force_drafts
from tests.engine.clients import Client, alone, finish, prompt

Found = list[tuple[int, float]]
VOCABULARY = 600
NEXT = (7, 300, 41)


def tiny(path: Path, mix: str = "f16", stages: int = 3) -> Path:
    synth(path, width="tiny", ratios=(0, 4, 128, 4), mix=mix, dspark=stages)
    return path


def published(path: Path, mix: str) -> Path:
    """A narrow model with the published heads: the fast kernels, and prompts in long steps."""
    base = replace(
        FLASH, hidden=512, heads=16, q_rank=256, o_groups=4, o_rank=256, experts=16, index_topk=64,
        context_length=4096,
    )  # fmt: skip
    width = Width(base, 5, 1, 256, lambda _: 0)
    config = width.config((0, 4, 128, 4), 1, VOCABULARY)
    write_synth(SynthPlan("narrow", config, mix, 0.0, 1, (), 3), path)
    return path


SHAPES: dict[str, tuple[Callable[[Path], Path], str]] = {  # and how rows are stored
    "tiny": (tiny, "f32"),
    "tiny, one stage, halves": (lambda path: tiny(path, stages=1), "f16"),
    "tiny, q8_0": (lambda path: tiny(path, "q8_0"), "f16"),
    "published heads, q2": (lambda path: published(path, "q2"), "f16"),
    "published heads, mxfp4, floats": (lambda path: published(path, "mxfp4"), "f32"),
}


def opened(path: Path, device: str, draft: str = "dspark", **options: Any) -> Engine:
    return Engine(path, **{"device": device, "context": 1024, "draft": draft, "threads": 4, **options})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("dspark") / "m.gguf")


@pytest.fixture(scope="module")
def cuda(model: Path) -> Iterator[Engine]:
    with opened(model, "cuda", kv_dtype="f32") as engine:
        yield engine


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[Engine]:
    with opened(model, "cuda", "off", kv_dtype="f32") as engine:
        yield engine


def guesses(session: Session, most: int = 5, least: float = 0.0) -> list[Found]:
    return [session.engine.stepper.draft(session, token, most, least) for token in NEXT]


def agree(found: list[Found], wanted: list[Found], what: str) -> None:
    """Choices are discrete: where two experts or two tokens are equal but for rounding, a block may differ."""
    assert all(len(one) == len(other) for one, other in zip(found, wanted, strict=True))
    alike = [
        (one, other)
        for one, other in zip(found, wanted, strict=True)
        if [token for token, _ in one] == [token for token, _ in other]
    ]
    off = [abs(a - b) for one, other in alike for (_, a), (_, b) in zip(one, other, strict=True)]
    print(
        f"{what}: {len(alike)} of {len(found)} blocks alike, chances differ by {max(off, default=1):.1e} at most"
    )
    assert len(alike) >= 0.9 * len(found)
    assert np.median(off) < 2e-3
    assert np.quantile(off, 0.95) < 2.5e-2


# ── the guesses ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", SHAPES)
def test_guesses_are_those_of_the_cpu(shape: str, tmp_path: Path) -> None:
    """In the beginning, with windows that are not full, with full ones; after prompts in short steps and in long
    ones, and after tokens read one by one."""
    make, kv_dtype = SHAPES[shape]
    path = make(tmp_path / "m.gguf")
    found: dict[str, list[Found]] = {}
    for device in ("cpu", "cuda"):
        with opened(path, device, kv_dtype=kv_dtype) as engine:
            own = found[device] = []
            for length in (1, 5, 31, 200, 700):
                session = engine.session()
                session.feed(prompt(length, length))
                own += guesses(session)
                for token in range(9):
                    session.feed([token])
                session.feed([3, 4, 5, 6])
                own += guesses(session)
                session.rewind(7)
                own += guesses(session.fork())
    agree(found["cuda"], found["cpu"], shape)


def test_sequences_that_share_steps_guess_what_they_guess_alone(tmp_path: Path) -> None:
    with opened(published(tmp_path / "m.gguf", "q2"), "cuda") as engine:
        prompts = [prompt(n, length) for n, length in enumerate((40, 300, 211))]
        wanted = []
        for each in prompts:
            session = engine.session()
            session.feed(each)
            session.feed([5])
            wanted.append(guesses(session))
        sessions = [engine.session() for _ in prompts]
        engine.feed(list(zip(sessions, prompts, strict=True)))
        engine.feed([(session, [5]) for session in sessions])
        assert [guesses(session) for session in sessions] == wanted


def test_wrong_guesses_and_rewinding_leave_nothing(cuda: Engine) -> None:
    """Launched, recorded and repeated blocks are the same; so is one after others that came to nothing."""
    session = cuda.session()
    session.feed(prompt(1, 70))
    first = guesses(session)
    for _ in range(3):
        assert guesses(session) == first
    session.feed([1, 2, 3])
    assert guesses(session) != first
    session.rewind(3)
    assert guesses(session) == first
    fork = session.fork()
    session.feed([9])
    assert guesses(fork) == first
    again = cuda.session()
    for token in prompt(1, 70):
        again.feed([token])
    assert guesses(again) == first


def test_a_saved_session_goes_on_on_the_other_device(model: Path, cuda: Engine, tmp_path: Path) -> None:
    with opened(model, "cpu", kv_dtype="f32") as cpu:
        sessions = {}
        for engine, other in ((cpu, cuda), (cuda, cpu)):
            session = engine.session()
            session.feed(prompt(2, 150))
            session.save(tmp_path / "session")
            found = other.load_session(tmp_path / "session")
            found.feed([8, 9])
            session.feed([8, 9])
            sessions[engine.backend.name] = guesses(session), guesses(found)
    for name, (here, there) in sessions.items():
        agree(there, here, f"saved on {name}")


def test_a_module_that_did_not_keep_up_knows_what_it_followed_since(model: Path, cuda: Engine) -> None:
    found: dict[str, list[Found]] = {}
    with opened(model, "cpu", kv_dtype="f32") as cpu:
        for engine in (cpu, cuda):
            session = engine.session()
            session.feed(prompt(3, 30))
            engine.stepper.keep_up(False)
            for token in (5, 6, 7):
                session.feed([token])
            engine.stepper.keep_up(True)
            for token in (8, 9):
                session.feed([token])
            found[engine.backend.name] = guesses(session)
    agree(found["cuda"], found["cpu"], "not followed")


def test_unlikely_guesses_are_left_out(cuda: Engine) -> None:
    session = cuda.session()
    session.feed(prompt(3, 30))
    (every, *_) = guesses(session)
    assert len(every) == 5
    assert guesses(session, 2)[0] == every[:2]
    first, second = every[0][1], every[0][1] * every[1][1]
    assert guesses(session, 5, (first + second) / 2)[0] == every[:2]


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("always", [True, False], ids=["always", "as the gate decides"])
@pytest.mark.parametrize("chosen", [{"temperature": 0}, {"temperature": 1, "seed": 3, "top_p": 0.9}], ids=str)
def test_text_and_session_are_the_same(
    plain: Engine, cuda: Engine, monkeypatch: pytest.MonkeyPatch, always: bool, chosen: dict[str, Any]
) -> None:
    if always:
        force_drafts(monkeypatch)
    cuda.speculation = cuda.new_speculation()
    sampling, asked = Sampling(ignore_eos=True, **chosen), prompt(4, 50)
    sessions = plain.session(), cuda.session()
    wanted = list(plain.generate(asked, 150, sampling, sessions[0]))
    found = list(cuda.generate(asked, 150, sampling, sessions[1]))
    assert [(step.token, step.logprob) for step in found] == [(step.token, step.logprob) for step in wanted]
    assert sum(cuda.stats()["draft"]["drafted"]["dspark"]) > 0
    theirs, ours = (session.state.tensors() for session in sessions)
    for name, rows in theirs.items():
        np.testing.assert_array_equal(rows, ours[name], err_msg=name)
    if (
        always
    ):  # then the module has followed all of it: its windows are those of a session that guessed nothing
        reader = cuda.session()
        for token in sessions[1].tokens:
            reader.feed([token])
        read = reader.state.tensors()
        for name in ours.keys() - theirs.keys():
            np.testing.assert_array_equal(read[name], ours[name], err_msg=name)
    one, other = (session.feed(prompt(9, 9), "all") for session in sessions)
    np.testing.assert_array_equal(one, other)


def test_requests_together_get_the_answers_they_get_alone(
    plain: Engine, cuda: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    force_drafts(monkeypatch)
    clients = [Client(prompt(n, 30), 20 + 5 * n, temperature=n % 2, seed=n, top_p=0.9) for n in range(6)]
    scheduler = Scheduler(cuda, parallel=4)
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)
    for client in clients:
        assert client.failure is None
        assert client.tokens == alone(plain, client)


# ── memory ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_plan_counts_the_module(tmp_path: Path) -> None:
    """All that is taken besides the driver's is less than what is planned for it, after every kind of step."""
    path = published(tmp_path / "m.gguf", "q2")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with opened(path, "cuda") as engine:
        session = engine.session()
        session.feed(prompt(5, 700))
        for token in range(3):
            session.feed([token])
            guesses(session)
        taken = torch.cuda.memory_reserved() - before + engine.stats()["device"]["session_bytes"]
        planned = engine.plan.total - engine.plan.base
    print(f"{taken / 2**20:,.0f} MiB taken, {planned / 2**20:,.0f} planned")
    assert taken <= planned
    assert planned > opened(path, "cuda", "off", load=False).plan.total - engine.plan.base


def test_auto_has_the_module_where_it_takes_nothing_from_others(model: Path) -> None:
    with opened(model, "cuda", "auto") as engine:
        assert engine.drafters == ("ngram", "dspark")
    least = {draft: opened(model, "cuda", draft, load=False).plan.smallest for draft in ("off", "dspark")}
    assert least["off"] < least["dspark"]
    short = opened(model, "cuda", "auto", load=False, vram=(least["off"] + least["dspark"]) // 2)
    assert short.drafters == ("ngram",)
    with pytest.raises(BudgetError):
        opened(model, "cuda", load=False, vram=least["off"] - (1 << 20))
