"""Stages on the card: two that share it, and one beside a stage on the CPU.  Workers are processes of their own."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

import penstock
from penstock import Engine
from penstock.cluster.machines import Machines
from penstock.engine.scheduler import Scheduler
from penstock.pocket import pocket_path
from tests.engine.clients import Client, finish
from tests.gpu.test_engine import PROMPTS, all_logits, answer, difference, ids

SOURCE = Path(penstock.__file__).parents[1]
SHARE = "6GiB"  # of the card's memory
OPTIONS: dict[str, Any] = {"context": 2048, "draft": "off", "threads": 4}
MIXES = [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")]


def on(device: str) -> list[str]:
    return ["--device", device, *(["--vram", SHARE] if device == "cuda" else [])]


@contextmanager
def staged(head: str, worker: str, boundary: str) -> Iterator[Engine]:
    vram = SHARE if head == "cuda" else None
    engine = Engine(
        pocket_path(), device=head, vram=vram, cluster="127.0.0.1:0", stages=2, boundary=boundary, load=False,
        **OPTIONS,
    )  # fmt: skip
    assert engine.machines is not None
    join = f"127.0.0.1:{engine.machines.head.address[1]}"
    command = [sys.executable, "-m", "penstock", "worker", "--join", join, "--once", *on(worker)]
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen([*command, "--threads", "4"], env=environment) as other:
        threading.Thread(target=_close_with, args=(other, engine.machines), daemon=True).start()
        try:
            engine.load()
            yield engine
        finally:
            engine.close()
            assert other.wait(60) == 0


def _close_with(worker: subprocess.Popen[bytes], machines: Machines) -> None:
    """A worker that could not begin is not waited for."""
    worker.wait()
    machines.close()


@pytest.fixture(scope="module")
def cpu() -> Iterator[Engine]:
    with Engine(pocket_path(), device="cpu", **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module", params=MIXES, ids=lambda mix: " and ".join(mix))
def mixed(request: pytest.FixtureRequest) -> Iterator[Engine]:
    head, worker = request.param
    with staged(head, worker, "f32") as engine:
        yield engine


def test_each_stage_is_where_it_was_said(mixed: Engine, request: pytest.FixtureRequest) -> None:
    mixed.session().feed(ids(3))
    while not all("device" in member for member in mixed.stats()["cluster"]["members"]):
        time.sleep(0.05)  # a worker tells it once a second
    found = tuple(member["device"] for member in mixed.stats()["cluster"]["members"])
    assert found == request.node.callspec.params["mixed"]


def test_logits_are_the_cpus(cpu: Engine, mixed: Engine) -> None:
    tokens = ids(400)
    error, kl, same = difference(all_logits(mixed, tokens), all_logits(cpu, tokens), part=0.95)
    print(f"19 of 20 rows: {error:.1e} of the range, KL {kl:.1e}, same best {same:.4f}")
    assert error < 1e-3
    assert kl < 1e-5
    assert same > 0.99


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_text_is_the_cpus(cpu: Engine, mixed: Engine, prompt: str) -> None:
    assert answer(mixed, prompt) == answer(cpu, prompt)


def test_requests_in_flight_get_the_answers_they_get_alone(mixed: Engine) -> None:
    prompts = [ids(9 + 40 * n, seed=n) for n in range(4)]
    expected = []
    for number, prompt in enumerate(prompts):
        alone, scheduler = Client(prompt, 12, temperature=number % 2, seed=number), Scheduler(mixed)
        scheduler.submit(alone.request)
        finish(scheduler)
        expected.append(alone.tokens)
    together, scheduler = (
        [Client(prompt, 12, temperature=number % 2, seed=number) for number, prompt in enumerate(prompts)],
        Scheduler(mixed, parallel=4),
    )
    for client in together:
        scheduler.submit(client.request)
    finish(scheduler)
    assert [client.failure for client in together] == [None] * 4
    assert [client.tokens for client in together] == expected


def test_one_token_at_a_time_is_all_at_once(mixed: Engine) -> None:
    """Graphs that begin with streams of another stage are recorded and repeated."""
    tokens = ids(60, seed=2)
    whole, session = all_logits(mixed, tokens), mixed.session()
    rows = [session.feed([token]) for token in tokens]
    error, kl, same = difference(np.stack([row for row in rows if row is not None]), whole, part=0.95)
    assert error < 1e-3
    assert kl < 1e-5
    assert same > 0.97


def test_rewinding_forking_and_saving(cpu: Engine, mixed: Engine, tmp_path: Path) -> None:
    tokens = ids(200, seed=6)
    wanted = cpu.session().feed(tokens)
    session = mixed.session()
    session.feed(tokens[:170])
    fork = session.fork()
    session.feed(ids(20, seed=3))
    session.rewind(20)
    session.save(tmp_path / "session")
    assert wanted is not None
    for each in (
        session,
        fork,
        mixed.load_session(tmp_path / "session"),
        cpu.load_session(tmp_path / "session"),
    ):
        found = each.feed(tokens[170:])
        assert found is not None
        error, kl, _ = difference(found[None], wanted[None])
        assert error < 1e-3
        assert kl < 1e-5


def test_sixteen_bits_between_two_stages_on_one_card_do_not_change_greedy_text(cpu: Engine) -> None:
    with staged("cuda", "cuda", "bf16") as engine:
        found = [answer(engine, prompt) for prompt in PROMPTS]
    assert found == [answer(cpu, prompt) for prompt in PROMPTS]


def test_an_expert_worker_on_the_card(cpu: Engine) -> None:
    """The head is on the CPU; terms of the card are not the same bits, and the text is the same."""
    engine = Engine(
        pocket_path(), device="cpu", cluster="127.0.0.1:0", stages=1, load=False, **OPTIONS
    )  # fmt: skip
    assert engine.machines is not None
    join = f"127.0.0.1:{engine.machines.head.address[1]}"
    command = [sys.executable, "-m", "penstock", "worker", "--join", join, "--experts", "auto", "--once"]
    environment = {**os.environ, "PYTHONPATH": f"{SOURCE}:{os.environ.get('PYTHONPATH', '')}"}
    with subprocess.Popen([*command, *on("cuda")], env=environment) as other, engine:
        engine.load()
        while not any("experts" in member for member in engine.stats()["cluster"]["members"]):
            assert other.poll() is None
            time.sleep(0.05)
        tokens = ids(400)
        error, kl, same = difference(all_logits(engine, tokens), all_logits(cpu, tokens), part=0.95)
        print(f"19 of 20 rows: {error:.1e} of the range, KL {kl:.1e}, same best {same:.4f}")
        assert kl < 1e-4
        assert same > 0.99
        assert [answer(engine, prompt) for prompt in PROMPTS] == [answer(cpu, prompt) for prompt in PROMPTS]
        member = engine.stats()["cluster"]["members"][-1]
        assert member["pairs"] > 0
        assert member["device"] == "cuda"


def test_a_parked_stage_comes_back(mixed: Engine) -> None:
    session, tokens = mixed.session(), ids(30, seed=7)
    session.feed(tokens)
    mixed.park()
    again = mixed.session()
    again.feed(tokens)
    found, wanted = session.feed([5]), again.feed([5])
    assert found is not None
    assert wanted is not None
    np.testing.assert_allclose(found, wanted, atol=1e-3)
