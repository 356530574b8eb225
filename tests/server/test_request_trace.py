"""Whole exchanges in a file: complete, for its owner alone, without keys."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.errors import OptionError
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.observe.request_trace import IN_MEMORY, SpooledText, TraceFile
from penstock.server.service import Service

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@pytest.fixture
def traced(service: Service, client: TestClient, file: Path) -> TestClient:
    """Another application on the scheduler that `client` runs."""
    del client
    settings = Settings(trace_requests=file, api_keys=("sesame",))
    other = TestClient(create_app(Service(service.engine, settings, service.scheduler)))
    other.headers["authorization"] = "Bearer sesame"
    return other


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_whole_exchange(traced: TestClient, service: Service, file: Path) -> None:
    reply = traced.post(CHAT + "?key=sesame", json=HELLO, headers={"x-request-id": "mine"})
    (line,) = read(file)
    assert (line["id"], line["status"], line["path"]) == ("mine", 200, CHAT + "?key=…")
    assert json.loads(line["request"]) == HELLO
    assert line["response"] == reply.text
    assert line["seconds"] > 0
    (generation,) = line["generations"]
    tokenizer = service.engine.tokenizer
    assert tokenizer.decode(generation["prompt_tokens"]).endswith("<｜User｜>Hello<｜Assistant｜></think>")
    assert "Hello! How can I help you?" in tokenizer.decode(generation["tokens"])
    assert generation["finish_reason"] == "stop"
    assert generation["timings"]["prompt_n"] == 5


def test_a_stream_and_all_its_choices(traced: TestClient, file: Path) -> None:
    reply = traced.post(CHAT, json={**HELLO, "stream": True, "n": 2})
    (line,) = read(file)
    assert line["response"] == reply.text
    assert line["response"].endswith("data: [DONE]\n\n")
    assert len(line["generations"]) == 2


def test_keys_are_not_in_it_and_others_cannot_read_it(traced: TestClient, file: Path) -> None:
    traced.post(CHAT, json=HELLO, headers={"x-api-key": "sesame", "cookie": "sesame"})
    traced.get("/v1/models")
    assert len(read(file)) == 1
    assert "sesame" not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_refusals_and_what_is_no_text(traced: TestClient, file: Path) -> None:
    traced.post(CHAT, content=b'\xff"\n\x00', headers={"content-type": "application/json"})
    (line,) = read(file)
    assert (line["status"], line["request"]) == (400, '\ufffd"\n\x00')


def test_characters_come_in_pieces_and_long_texts_go_to_the_disk(tmp_path: Path) -> None:
    text = "ä€😀\n" * IN_MEMORY
    data = text.encode()
    with SpooledText(tmp_path) as said:
        for begin in range(0, len(data), 65_537):
            said.write(data[begin : begin + 65_537])
        assert json.loads(b'"' + b"".join(said.escaped()) + b'"') == text
    assert list(tmp_path.iterdir()) == []


def test_a_line_is_there_whole_or_not_at_all(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trace = TraceFile(file)
    trace.append([b"one\n"])
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if data.startswith(b"end"):
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:2])

    monkeypatch.setattr(os, "write", full)
    trace.append([b"begin", b"end\n"])
    monkeypatch.undo()
    trace.append([b"two\n"])
    assert file.read_text() == "one\ntwo\n"
    assert "No space left" in caplog.text


def test_a_place_that_cannot_be_written_is_refused_at_once(service: Service, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--trace-requests"):
        create_app(Service(service.engine, Settings(trace_requests=tmp_path / "no" / "file")))
