"""`penstock serve` as a process: it says where it listens, answers, and ends in order."""

import json
import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from penstock.cli.main import app
from penstock.engine.engine import Engine
from penstock.errors import DeviceLostError, OptionError, PenstockError, ReadError
from penstock.pocket import pocket_path
from penstock.server.http.server import Server, address, listen
from penstock.server.http.settings import Settings
from penstock.server.service import Service


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", "--threads", "1", "--context", "8192", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


class Running(NamedTuple):
    process: subprocess.Popen[str]
    url: str
    folder: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("serve")
    files = ("--log-json", "--log-file", str(folder / "log"), "--trace-requests", str(folder / "trace"))
    process = start(
        "--port", "0", "--name", "pocket", "--body-timeout", "2", *files, PENSTOCK_API_KEY="secret"
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("penstock: listening on http://127.0.0.1:"), line
    url = line.split()[-1]
    wait_until(lambda: httpx.get(f"{url}/health").status_code == 200)
    yield Running(process, url, folder)
    process.kill()
    process.wait()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def log_of(server: Running) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (server.folder / "log").read_text().splitlines()]


def answer_to(url: str, sent: bytes) -> str:
    """What a connection hears that sends this and then waits."""
    host, port = url.removeprefix("http://").split(":")
    heard = b""
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(sent)
        while piece := connection.recv(1 << 16):
            heard += piece
    return heard.decode()


def test_it_listens_first_and_then_reads_the_weights(server: Running) -> None:
    def states() -> list[str]:
        return [line["state"] for line in log_of(server) if line["message"] == "model"]

    wait_until(lambda: states()[-1:] == ["ready"])
    assert states() in (
        ["loading", "ready"],
        ["ready"],
    )  # the pocket model may be there before the first look


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["unfinished", "finished"])
def test_heads_that_are_too_long(server: Running, end: bytes) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Long: " + b"x" * 70_000
    assert answer_to(server.url, head + end).startswith("HTTP/1.1 431 ")


def test_what_is_no_http(server: Running) -> None:
    assert answer_to(server.url, b"nonsense\r\n\r\n").startswith("HTTP/1.1 400 ")


def test_slow_clients_are_not_waited_for(server: Running) -> None:
    assert answer_to(server.url, b"") == ""
    assert answer_to(server.url, b"GET /health HTTP/1.1\r\n") == ""
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: secret\r\nContent-Length: 9\r\n\r\n{"
    assert answer_to(server.url, head).startswith("HTTP/1.1 408 ")


def test_a_connection_is_kept_and_its_next_head_is_waited_for(server: Running) -> None:
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    assert answer_to(server.url, get + b"\r\n" + get).count("HTTP/1.1 200 ") == 1


def test_hanging_up_moves_the_log_on(server: Running) -> None:
    def ask(name: str) -> None:
        httpx.get(f"{server.url}/v1/models", headers={"x-request-id": name, "x-api-key": "secret"})
        wait_until(lambda: log.exists() and f'"{name}"' in log.read_text())  # a line follows the answer

    log = server.folder / "log"
    ask("before")
    old = log.rename(server.folder / "log.1")
    server.process.send_signal(signal.SIGHUP)
    ask("after")
    assert '"before"' in old.read_text()
    assert '"before"' not in log.read_text()
    old.unlink()


def test_it_answers_and_ends_in_order(server: Running) -> None:
    process, url, folder = server
    with httpx.Client(base_url=url, headers={"Authorization": "Bearer secret"}, timeout=120) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "pocket"
        asked = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}
        answer = client.post("/v1/chat/completions", json=asked).json()
        assert answer["choices"][0]["message"]["content"] == "Hello! How can I help you?"
        assert httpx.get(f"{url}/v1/models").status_code == 401

        endless = {"prompt": "Hello", "max_tokens": 8000, "ignore_eos": True}
        with client.stream("POST", "/v1/completions", json={**endless, "stream": True}) as stream:
            lines = stream.iter_lines()  # kept: the connection ends with it
            next(lines)
            assert 'is_processing":true' in client.get("/slots").text
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=endless, timeout=httpx.Timeout(60, read=0.5))
        # Both clients have gone: their requests end long before 8,000 tokens.
        wait_until(lambda: 'is_processing":true' not in client.get("/slots").text)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert stat.S_IMODE((folder / "trace").stat().st_mode) == 0o600
    for file in ("log", "trace"):
        assert "secret" not in (folder / file).read_text()
    assert "How can I help you" not in (folder / "log").read_text()
    assert "How can I help you" in (folder / "trace").read_text()


def test_what_is_being_answered_at_the_end_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(Service(Engine(pocket_path(), threads=1), Settings(port=0)), farewell=0)
    caplog.set_level("INFO", "penstock")
    with listen("127.0.0.1", 0) as listener:
        url = address(listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        endless = {"prompt": "Hello", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=endless, timeout=120) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.should_exit = True
            *_, last = (line for line in lines if line)
        thread.join()
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["code"], error["message"]) == ("shutting_down", "the server is shutting down")
    (line,) = [record.fields for record in caplog.records if record.message == "request"]  # type: ignore[attr-defined]
    assert (line["status"], line["error"]) == (200, "shutting_down")


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(OptionError, match="cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(OptionError, match="cannot listen"):
        listen("127.0.0.1", 70_000)


def test_an_open_door_is_refused_before_the_model_is_read() -> None:
    process = start("--host", "0.0.0.0", "-m", "missing.gguf")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "--api-key-file is needed, or --no-key" in errors


def test_it_listens_and_can_end_while_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, over = Engine(pocket_path(), threads=1, load=False), threading.Event()
    monkeypatch.setattr(engine, "load", lambda: over.wait(300))
    server = Server(Service(engine, Settings(port=0)), farewell=0)
    with listen("127.0.0.1", 0) as listener:
        url = address(listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        health = httpx.get(f"{url}/health", timeout=120)
        answer = httpx.post(f"{url}/v1/completions", json={"prompt": "Hello"}, timeout=120)
        server.should_exit = True
        thread.join(120)
        ended = not thread.is_alive()
        over.set()
    assert (health.status_code, answer.status_code) == (503, 503)
    assert answer.json()["error"]["message"] == "Loading model"
    assert ended


def test_a_model_that_cannot_be_read_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server listens already; it ends and says why."""
    engine = Engine(pocket_path(), threads=1, load=False)

    def fail(*_: object) -> None:
        raise ReadError("model.gguf: the disk is gone")

    monkeypatch.setattr(engine, "load", fail)
    with listen("127.0.0.1", 0) as listener, pytest.raises(ReadError, match="the disk is gone"):
        Server(Service(engine, Settings(port=0)), farewell=0).run_until_signal(listener)


def test_a_device_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is being answered hears why, and so does whoever started the server, which ends."""
    engine = Engine(pocket_path(), threads=1)
    begin, steps, heard = engine.runner.begin, list[object](), list[str]()

    def fail(*arguments: Any) -> Any:
        steps.append(arguments)
        if len(steps) > 3:
            raise DeviceLostError("the GPU is lost")
        return begin(*arguments)

    monkeypatch.setattr(engine.runner, "begin", fail)

    def ask(url: str) -> None:
        endless = {"prompt": "Hello", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=endless, timeout=120) as stream:
            heard.extend(line for line in stream.iter_lines() if line)

    with listen("127.0.0.1", 0) as listener:
        client = threading.Thread(target=ask, args=(address(listener),))
        client.start()
        with pytest.raises(DeviceLostError, match="the GPU is lost"):
            Server(Service(engine, Settings(port=0)), farewell=0).run_until_signal(listener)
        client.join()
    error = json.loads(heard[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["message"]) == ("unavailable", "the GPU is lost")


def test_flags_that_cannot_go_together_or_be_read() -> None:
    for flags, told in (
        (("--park-after", "5", "--trace", "t"), "--park-after"),
        (("--kv-space", "much"), "--kv-space"),
        (("--log-level", "loud"), "--log-level"),
        (("--timeout", "-1"), "timeout"),
    ):
        with pytest.raises(OptionError, match=told):
            invoke(*flags)


def test_listening_to_everybody_is_warned_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"missing\.gguf"):
        invoke("--host", "0.0.0.0", "--port", "0", "--api-key", "k", "-m", str(tmp_path / "missing.gguf"))
    told = capsys.readouterr().err
    assert "not encrypted" in told
    assert "WARNING" not in told


def test_an_open_door_is_told_of_loudly(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=r"missing\.gguf"):
        invoke("--host", "0.0.0.0", "--port", "0", "--no-key", "-m", str(tmp_path / "missing.gguf"))
    told = capsys.readouterr().err
    assert "WARNING: --host 0.0.0.0 with --no-key: whoever can reach this machine may use the model" in told


def invoke(*flags: str) -> None:
    """As the command line does."""
    root = logging.getLogger()
    handlers, level, showing = list(root.handlers), root.level, warnings.showwarning
    hanging_up = signal.getsignal(signal.SIGHUP)
    try:
        app(["serve", *flags], standalone_mode=False)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        warnings.showwarning = showing
        signal.signal(signal.SIGHUP, hanging_up)
