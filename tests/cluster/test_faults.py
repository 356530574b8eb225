"""Workers that die, hang or are cut off: affected requests end with an error, the head goes on, and a worker that
comes back brings everything back."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.cluster.control import Control
from penstock.cluster.message import Message
from penstock.engine.engine import Engine
from penstock.engine.requests import Failed
from penstock.engine.scheduler import Scheduler
from penstock.errors import ClusterError, ReadError
from penstock.pocket import pocket_path
from tests.cluster.machines import Hired, cluster, open_head
from tests.engine.clients import Client, finish

SOURCE = Path(penstock.__file__).parents[1]
IDS = list(range(100, 220))


def hire(port: int) -> subprocess.Popen[bytes]:
    """A worker in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "penstock",
        "worker",
        "--join",
        f"127.0.0.1:{port}",
        "--threads",
        "1",
        "--once",
    ]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, "--memory", "none"], env=environment, stderr=subprocess.DEVNULL)


def feed_until_it_fails(session: penstock.Session) -> None:
    """The first may have been on its way already."""
    while True:
        session.fork().feed([7])


def fed_when_back(session: penstock.Session, ids: list[int]) -> object:
    """What feeding gives once the cluster is there again."""
    while True:
        try:
            return session.feed(ids)
        except ClusterError:
            time.sleep(0.05)


@pytest.fixture(scope="module")
def expected() -> Iterator[list[object]]:
    with Engine(pocket_path(), threads=1, context=512, memory=None, learn="off") as engine:
        session = engine.session()
        yield [session.feed(IDS), session.feed([7]), session.feed([8])]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_worker_is_an_error_and_its_successor_brings_everything_back(
    how: signal.Signals, expected: list[object]
) -> None:
    engine, port = open_head(pocket_path(), 2, context=512, cluster_timeout=5.0)
    first = hire(port)
    engine.load()
    session, idle = engine.session(), engine.session()
    assert np.array_equal(session.feed(IDS), expected[0])  # type: ignore[arg-type]
    idle.feed(IDS)
    first.send_signal(how)
    with pytest.raises(ClusterError):
        feed_until_it_fails(session)
    assert not engine.stats()["cluster"]["up"]
    assert session.lost
    with pytest.raises(ClusterError, match="1 of 2 stages are here"):
        session.fork().feed([7])
    first.kill()
    first.wait()
    second = hire(port)
    # All that the sessions remembered is read again.
    assert np.array_equal(fed_when_back(session, [7]), expected[1])  # type: ignore[arg-type]
    assert session.tokens == [*IDS, 7]
    assert np.array_equal(idle.feed([7]), expected[1])  # type: ignore[arg-type]
    assert engine.stats()["cluster"]["epochs"] == 2
    engine.close()
    assert second.wait(60) == 0


@pytest.mark.parametrize(
    ("layers", "machine", "turn"), [("auto", 1, 0), ("0:1,4:5", 0, 1), ("0:1,4:5", 1, 1)]
)
def test_a_stage_that_fails_fails_the_step_alone(
    layers: str, machine: int, turn: int, expected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sessions are as they were before it."""
    with cluster(pocket_path(), 3, layers=layers, context=512) as engine:
        session = engine.session()
        session.feed(IDS)
        from penstock.cluster.stage import Stage

        forward, broken = Stage.forward, [True]

        def failing(self: Stage, step, *more, **named):  # type: ignore[no-untyped-def]
            if (self.number, self._turn) == (machine, turn) and broken:
                broken.clear()
                raise ReadError("the disk is tired")
            return forward(self, step, *more, **named)

        monkeypatch.setattr(Stage, "forward", failing)
        with pytest.raises(ReadError, match=f"stage {machine + 1}: the disk is tired"):
            session.feed([7])
        assert session.position == len(IDS)
        assert np.array_equal(session.feed([7]), expected[1])  # type: ignore[arg-type]
        assert engine.stats()["cluster"]["epochs"] == 1


def test_a_prompt_that_fails_on_its_way_is_read_again(
    expected: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(pocket_path(), 2, context=512, prefill_chunk=32) as engine:
        from penstock.cluster.stage import Stage

        forward, broken = Stage.forward, [True]

        def failing(self: Stage, step, *more, **named):  # type: ignore[no-untyped-def]
            if self.number == 1 and step.positions[0] == 32 and broken:
                broken.clear()
                raise ReadError("the disk is tired")
            return forward(self, step, *more, **named)

        monkeypatch.setattr(Stage, "forward", failing)
        session = engine.session()
        with pytest.raises(ReadError, match="the disk is tired"):
            session.feed(IDS)
        assert session.tokens == IDS[:32]
        assert np.array_equal(session.feed(IDS[32:]), expected[0])  # type: ignore[arg-type]


def test_a_group_that_breaks_under_a_prompt_ends_its_request_once() -> None:
    """A piece is under way, and the next cannot begin."""
    with cluster(pocket_path(), 2, context=512, prefill_chunk=32) as engine:
        client, scheduler = Client(IDS), Scheduler(engine)
        scheduler.submit(client.request)
        scheduler.loop.step()
        assert engine.machines is not None
        epoch = engine.machines._pipeline.current()
        epoch.group.break_up("a cut")
        finish(scheduler)
        assert [type(update) for update in client.updates if isinstance(update, Failed)] == [Failed]


def test_the_head_that_ends_lets_its_workers_end() -> None:
    engine, port = open_head(pocket_path(), 3, context=256)
    workers = [Hired(pocket_path(), port) for _ in range(2)]
    engine.load()
    engine.close()
    for worker in workers:
        worker.wait()
        assert worker.failure is None
        assert worker.said[-1] in ("the head has ended",) or "has left" in worker.said[-1]


@pytest.mark.parametrize("moment", ["prepare", "connect"])
def test_a_head_that_ends_while_its_workers_come_lets_them_end(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a timeout, which would be longer than the test waits."""
    engine, port = open_head(pocket_path(), 3, context=256, cluster_timeout=3600.0)
    told, send = threading.Event(), Control.send

    def noted(self: Control, message: Message) -> None:
        send(self, message)
        if message.kind == moment:
            told.set()

    monkeypatch.setattr(Control, "send", noted)
    workers = [Hired(pocket_path(), port) for _ in range(2)]
    assert told.wait(60)
    engine.close()
    for worker in workers:
        worker.wait()
        assert worker.failure is None
