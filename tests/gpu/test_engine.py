"""The pocket model on the card against the CPU: the same text, the same state, whatever shares a step."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from penstock import Engine
from penstock.engine import planning
from penstock.engine.sampling import Sampling
from penstock.engine.scheduler import Scheduler
from penstock.errors import OptionError, PenstockError
from penstock.pocket import pocket_path
from tests.engine.clients import Client, alone, finish

Logits = NDArray[np.float32]
PROMPTS = ("What is 17 + 25?", "Name three colours.", "Write a haiku about rain.", "Count from one to ten.")


def ids(count: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(2, 4000, count)]


def open_pocket(device: str, **options: Any) -> Engine:
    return Engine(pocket_path(), device=device, **{"context": 2048, "draft": "off", "threads": 4, **options})


@pytest.fixture(scope="module")
def cpu() -> Iterator[Engine]:
    with open_pocket("cpu") as engine:
        yield engine


@pytest.fixture(scope="module")
def cuda() -> Iterator[Engine]:
    with open_pocket("cuda") as engine:
        yield engine


def difference(found: Logits, wanted: Logits, *, part: float = 1.0) -> tuple[float, float, float]:
    """Largest difference as a share of the logits' range, KL divergence, both of the nearest `part` of the rows, and
    share of equal best tokens."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)

    def log_softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
        x = x - x.max(axis=-1, keepdims=True)
        out: NDArray[np.float64] = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
        return out

    p, q = log_softmax(b), log_softmax(a)
    kl = float(np.quantile((np.exp(p) * (p - q)).sum(axis=-1), part))
    same = float((a.argmax(axis=-1) == b.argmax(axis=-1)).mean())
    return float(np.quantile(np.abs(a - b).max(axis=-1), part) / (b.max() - b.min())), kl, same


def all_logits(engine: Engine, tokens: list[int]) -> Logits:
    (found,) = engine.feed([(engine.session(), tokens)], logits="all")
    assert found is not None
    return found


def test_it_runs_on_the_card(cuda: Engine) -> None:
    assert cuda.backend.name == "cuda"
    assert cuda.plan.mode == "vram"


def test_logits_are_the_cpus(cpu: Engine, cuda: Engine) -> None:
    tokens = ids(400)
    # Experts whose scores are within rounding of each other may be chosen differently, and a row then moves.
    error, kl, same = difference(all_logits(cuda, tokens), all_logits(cpu, tokens), part=0.95)
    print(
        f"pocket, 19 of 20 rows: largest difference {error:.1e} of the range, KL {kl:.1e}, same best {same:.4f}"
    )
    assert error < 1e-3
    assert kl < 1e-5
    assert same > 0.99


@pytest.mark.parametrize("kv_dtype", ["bf16", "f32"])
def test_other_kinds_of_rows(kv_dtype: str) -> None:
    tokens, found = ids(200), []
    for device in ("cuda", "cpu"):
        with open_pocket(device, kv_dtype=kv_dtype) as engine:
            found.append(all_logits(engine, tokens))
    error, kl, same = difference(*found)
    print(f"pocket, {kv_dtype} rows: {error:.1e} of the range, KL {kl:.1e}, same best {same:.4f}")
    # Rows of eight bits of mantissa round differently here and there, and a router then chooses differently.
    assert error < (3e-4 if kv_dtype == "f32" else 0.2)
    assert same > 0.98


def answer(engine: Engine, prompt: str, tokens: int = 48) -> list[int]:
    asked = engine.tokenizer.encode(prompt)
    return [step.token for step in engine.generate(asked, tokens, Sampling(temperature=0))]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_cpus(cpu: Engine, cuda: Engine, prompt: str) -> None:
    assert answer(cuda, prompt) == answer(cpu, prompt)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_the_answer_does_not_depend_on_what_shares_a_step(cuda: Engine, count: int) -> None:
    prompts = [ids(20 + 7 * i, seed=i) for i in range(count)]

    def last(engine: Engine, together: bool) -> list[Logits]:
        sessions = [engine.session() for _ in prompts]
        for session, prompt in zip(sessions, prompts, strict=True):
            engine.feed([(session, prompt)])
        work = [(session, [5 + i]) for i, session in enumerate(sessions)]
        found = engine.feed(work) if together else [engine.feed([one])[0] for one in work]
        return [logits for logits in found if logits is not None]

    for one, beside in zip(last(cuda, False), last(cuda, True), strict=True):
        np.testing.assert_array_equal(one, beside)


@pytest.mark.parametrize("chunk", [1, 3, 8, 13])
def test_the_answer_does_not_depend_on_chunks(cuda: Engine, chunk: int) -> None:
    tokens = ids(150, seed=3)
    whole = cuda.session().feed(tokens)
    session = cuda.session()
    for first in range(0, len(tokens), chunk):
        last = session.feed(tokens[first : first + chunk])
    np.testing.assert_array_equal(last, whole)


def test_a_graph_repeats_what_was_launched(cuda: Engine) -> None:
    """The first step of its kind is launched, the second recorded; all give the same bits."""
    session, tokens = cuda.session(), ids(40, seed=4)
    session.feed(tokens)
    found = []
    for _ in range(4):
        found.append(session.feed([9]))
        session.rewind(1)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_rewinding_and_forking(cuda: Engine) -> None:
    session, tokens = cuda.session(), ids(300, seed=5)
    session.feed(tokens[:250])
    fork = session.fork()
    wanted = session.feed(tokens[250:])
    session.rewind(50)
    np.testing.assert_array_equal(session.feed(tokens[250:]), wanted)
    np.testing.assert_array_equal(fork.feed(tokens[250:]), wanted)


def test_a_saved_session_goes_on_on_either_device(cpu: Engine, cuda: Engine, tmp_path: Path) -> None:
    tokens = ids(200, seed=6)
    wanted = cpu.session().feed(tokens)
    assert wanted is not None
    for first, second in ((cpu, cuda), (cuda, cpu), (cuda, cuda)):
        session = first.session()
        session.feed(tokens[:170])
        session.save(tmp_path / "session")
        found = second.load_session(tmp_path / "session").feed(tokens[170:])
        assert found is not None
        error, kl, _ = difference(found[None], wanted[None])
        assert error < 1e-3
        assert kl < 1e-5


def test_parking_gives_memory_back(cuda: Engine) -> None:
    tokens = ids(30, seed=7)
    session = cuda.session()
    session.feed(tokens)
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    cuda.park()
    assert torch.cuda.memory_reserved() < before
    again = cuda.session()
    np.testing.assert_array_equal(session.feed([5]), (again.feed(tokens), again.feed([5]))[1])


def test_a_full_card_is_an_error_for_the_request_alone() -> None:
    with open_pocket("cuda") as engine:
        session = engine.session()
        wanted = session.feed([5, 6, 7])
        session.rewind(3)
        states: Any = engine.states
        states.limit = states.committed
        with pytest.raises(PenstockError, match="GPU's memory"):
            engine.session()
        np.testing.assert_array_equal(session.feed([5, 6, 7]), wanted)


def test_a_budget_below_what_is_needed_is_refused() -> None:
    with pytest.raises(PenstockError, match=r"this model needs .* of the GPU's memory"):
        open_pocket("cuda", vram="64MiB")


def test_the_draft_block() -> None:
    tokens, found = ids(60, seed=8), []
    for device in ("cuda", "cpu"):
        with open_pocket(device, draft="mtp") as engine:
            session = engine.session()
            for first in range(0, 60, 7):
                session.feed(tokens[first : first + 7])
            found.append(np.stack([engine.mtp_logits(session, token) for token in (5, 9, 5)]))
    error, kl, same = difference(*found)
    print(f"draft: {error:.1e} of the range, KL {kl:.1e}")
    assert error < 1e-3
    assert kl < 1e-5
    assert same == 1


@pytest.mark.parametrize(
    "chosen", [{"temperature": 0}, {"top_p": 0.9, "seed": 3, "repetition_penalty": 1.2}], ids=str
)
def test_steps_that_begin_early_change_nothing(
    cuda: Engine, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, Any]
) -> None:
    """The token that a step reads on the card is the one that the host hears of."""
    sampling, begun, found = Sampling(ignore_eos=True, **chosen), list[int](), []
    run = cuda.runner.run

    def counted(step: Any, *rest: Any) -> Any:
        begun.append(step.source is not None)
        return run(step, *rest)

    monkeypatch.setattr(cuda.runner, "run", counted)
    for ahead in (True, False):
        if not ahead:
            monkeypatch.setattr(cuda.stepper, "run_ahead", lambda _: None)
        session = cuda.session()
        steps = list(cuda.generate(ids(50, seed=9), 40, sampling, session))
        found.append(([step.token for step in steps], [step.logprob for step in steps], session.feed([5])))
    assert sum(begun) == 39
    assert found[0][:2] == found[1][:2]
    np.testing.assert_array_equal(found[0][2], found[1][2])


def test_requests_together_get_the_answers_they_get_alone(cuda: Engine) -> None:
    clients = [
        Client(ids(9 + 11 * n, seed=n), 5 + n, temperature=n % 2, seed=n, top_p=0.9, repetition_penalty=1.1)
        for n in range(6)
    ]
    scheduler = Scheduler(cuda, parallel=5)
    for client in clients:
        scheduler.submit(client.request)
    finish(scheduler)
    for client in clients:
        assert client.failure is None
        assert client.tokens == alone(cuda, client)


def test_scores_are_the_cpus(cpu: Engine, cuda: Engine) -> None:
    found = []
    for engine in (cuda, cpu):
        client, scheduler = Client(ids(50), 0, score=2), Scheduler(engine)
        scheduler.submit(client.request)
        finish(scheduler)
        found.append([step.logprob for step in client.scores])
    np.testing.assert_allclose(found[0], found[1], atol=0.02)


def test_auto_takes_the_card_if_the_model_is_worth_it_and_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_pocket("auto") as small:
        assert small.backend.name == "cpu"
    monkeypatch.setattr(planning, "WORTH_A_GPU", 0)
    with open_pocket("auto") as engine:
        assert engine.backend.name == "cuda"
    with pytest.raises(OptionError, match="but the model runs on the CPU: this model needs"):
        open_pocket("auto", vram="64MiB")


def test_what_is_used_is_what_was_planned(cuda: Engine) -> None:
    session = cuda.session()
    session.feed(ids(100))
    taken = torch.cuda.memory_reserved() + cuda.stats()["device"]["session_bytes"]
    assert taken <= cuda.plan.total
    assert taken <= cuda.stats()["device"]["used_bytes"] <= cuda.stats()["device"]["memory_bytes"]
