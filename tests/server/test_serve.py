"""`penstock serve` as a process: it says where it listens, answers, and ends in order."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.cli.serve import Server, address, listen, read_keys
from penstock.engine.engine import Engine
from penstock.errors import OptionError
from penstock.pocket import pocket_path
from penstock.server.service import Service
from penstock.server.settings import Settings


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "penstock", "serve", "--threads", "1", "--context", "8192", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = start("--port", "0", "--name", "pocket", PENSTOCK_API_KEY="secret")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("penstock: listening on http://127.0.0.1:"), line
    yield process, line.split()[-1]
    process.kill()
    process.wait()


def test_it_answers_and_ends_in_order(server: tuple[subprocess.Popen[str], str]) -> None:
    process, url = server
    with httpx.Client(base_url=url, headers={"Authorization": "Bearer secret"}, timeout=30) as client:
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
            client.post("/v1/completions", json=endless, timeout=0.5)
        deadline = (
            time.monotonic() + 20
        )  # both clients have gone: their requests end long before 8,000 tokens
        while 'is_processing":true' in client.get("/slots").text:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")


def test_what_is_being_answered_at_the_end_is_told_so() -> None:
    server = Server(Service(Engine(pocket_path(), threads=1), Settings(port=0)), farewell=0)
    with listen("127.0.0.1", 0) as door:
        url = address(door)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        endless = {"prompt": "Hello", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=endless, timeout=30) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.should_exit = True
            *_, last = (line for line in lines if line)
        thread.join()
    assert "shutting down" in last


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(OptionError, match="cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(OptionError, match="cannot listen"):
        listen("127.0.0.1", 70_000)


def test_keys_come_from_three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    monkeypatch.setenv("PENSTOCK_API_KEY", "three")
    assert read_keys(["zero"], file) == ("zero", "one", "two", "three")
    file.write_text("\n")
    for bad in (file, tmp_path / "missing"):
        with pytest.raises(OptionError, match="--api-key-file"):
            read_keys([], bad)


def test_an_open_door_is_refused_before_the_model_is_read() -> None:
    process = start("--host", "0.0.0.0", "-m", "missing.gguf")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "--api-key is needed" in errors
