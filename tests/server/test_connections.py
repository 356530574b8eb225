"""Connections have limits below that of descriptors, and nobody is kept out by those who ask nothing."""

import logging
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from penstock.pocket import pocket_path
from penstock.server.http.connections import SPARE, Connections
from penstock.server.observe.logs import Repeats


class Fake:
    def __init__(self, address: str, idle: bool = True):
        self.address, self.idle, self.ended = address, idle, False

    def end(self) -> None:
        self.ended = True


def test_the_one_that_is_idle_longest_goes() -> None:
    connections, made = Connections(3, 3), [Fake("a"), Fake("b", idle=False), Fake("c")]
    assert all(map(connections.add, made))
    connections.used(made[0])
    assert connections.add(Fake("d"))
    assert [each.ended for each in made] == [False, False, True]
    assert len(connections) == 3


def test_who_is_being_answered_stays() -> None:
    connections = Connections(2, 2)
    assert connections.add(Fake("a", idle=False))
    assert connections.add(Fake("b", idle=False))
    assert not connections.add(Fake("c"))


def test_an_address_has_its_share() -> None:
    connections, other = Connections(9, 2), Fake("b")
    first, second = Fake("a"), Fake("a")
    assert all(map(connections.add, (other, first, second, Fake("a"))))
    assert (other.ended, first.ended, second.ended) == (False, True, False)
    connections.remove(second)
    connections.remove(second)
    assert connections.add(Fake("a"))
    assert len(connections) == 3


def test_lines_of_one_kind_are_limited() -> None:
    now = 5.0
    repeats = Repeats(most=3, now=lambda: now)

    def line(message: str) -> logging.LogRecord | None:
        record = logging.LogRecord("penstock", logging.ERROR, "", 0, message, (), None)
        return record if repeats.filter(record) else None

    assert [line("no descriptors") is None for _ in range(5)] == [False] * 3 + [True] * 2
    assert line("something else") is not None
    now = 6.0
    found = line("no descriptors")
    assert getattr(found, "fields", None) == {"left_out": 2}
    assert getattr(line("no descriptors"), "fields", None) is None


@contextmanager
def serving(descriptors: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server of its own, which may have so many descriptors."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    command = [sys.executable, "-m", "penstock", "serve", "-m", str(pocket_path()), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limited
    ) as process:
        try:
            assert process.stdout is not None
            yield next(line for line in process.stdout if "listening" in line).split()[-1], process
        finally:
            process.terminate()
            process.communicate()


def test_half_open_connections_keep_nobody_out() -> None:
    with serving(SPARE + 60) as (url, process), ExitStack() as held:
        port = int(url.rsplit(":", 1)[1])
        for number in range(300):
            each = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            each.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: local")
            if number % 50 == 49:
                reply = httpx.get(f"{url}/health", timeout=60)
                assert reply.status_code in (200, 503)  # 503: it is being loaded
                assert reply.headers["content-type"] == "application/json"
        process.terminate()
        _, log = process.communicate(timeout=60)
        assert "descriptor" not in log
        assert len(log) < 20_000
