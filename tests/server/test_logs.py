"""What the server writes down, and what it does not."""

import io
import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

from penstock.errors import OptionError
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.observe.logs import JsonLines, TextLines, fields, start_logging
from penstock.server.service import Service

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "temperature": 0}


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged as JSON."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(JsonLines())
    log = logging.getLogger("penstock")
    monkeypatch.setattr(log, "handlers", [handler])
    monkeypatch.setattr(log, "propagate", False)
    level = log.level
    log.setLevel("INFO")
    yield text
    log.setLevel(level)


def requests(lines: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    return [line for line in found if line["message"] == "request"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_line_for_each_request(client: TestClient, lines: io.StringIO, stream: bool) -> None:
    headers = {"user-agent": "agent/" + "x" * 200, "authorization": "Bearer sesame"}
    reply = client.post(CHAT + "?key=sesame", json={**HELLO, "stream": stream}, headers=headers)
    (line,) = requests(lines)
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
    assert (line["prompt"], line["generated"]) == (5, 9)
    assert line["cached"] == 0
    assert line["per_second"] > 0
    assert line["client"] == "testclient"
    assert line["agent"].startswith("agent/xxx")
    assert len(line["agent"]) == 80
    assert line["id"] == reply.headers["x-request-id"]
    for secret in ("sesame", "Hello", "help"):
        assert secret not in lines.getvalue()


def test_polling_is_not_worth_a_line(client: TestClient, lines: io.StringIO) -> None:
    client.get("/health")
    client.get("/metrics")
    client.post("/dashboard/markdown", json={"text": "a"})
    assert requests(lines) == []


def test_refusals_say_their_kind(client: TestClient, lines: io.StringIO) -> None:
    client.post(CHAT, json={"messages": 5})
    (line,) = requests(lines)
    assert (line["status"], line["error"]) == (400, "invalid_value")


@pytest.mark.parametrize("sent", ["a", "req_01.A:b-c", "x" * 128])
def test_a_sane_id_is_kept(client: TestClient, sent: str) -> None:
    assert client.get("/health", headers={"x-request-id": sent}).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, 'a"b', "\x1b[2J"])
def test_other_ids_are_replaced(client: TestClient, sent: str) -> None:
    found = client.get("/health", headers={"x-request-id": sent}).headers["x-request-id"]
    assert found != sent
    assert len(found) == 32


def test_refusals_have_an_id_too(client: TestClient) -> None:
    for path in ("/nothing", "/v1/messages"):
        assert len(client.post(path).headers["x-request-id"]) == 32
    assert len(client.post("/v1/messages").headers["request-id"]) == 32


def test_what_nobody_thought_of_is_found_by_its_id(service: Service, lines: io.StringIO) -> None:
    app: FastAPI = create_app(Service(service.engine, Settings()))
    router = APIRouter()

    @router.get("/v1/broken")
    def broken() -> None:
        raise KeyError("/a/file/of/ours")

    app.include_router(router)
    reply: Any = TestClient(app).get("/v1/broken", headers={"x-request-id": "mine"})
    assert reply.status_code == 500
    assert reply.headers["x-request-id"] == "mine"
    assert reply.json()["error"]["code"] == "internal_error"
    assert "mine" in reply.json()["error"]["message"]
    assert "/a/file" not in reply.text
    failure, request = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert failure["id"] == request["id"] == "mine"
    assert "KeyError" in failure["exception"]
    assert request["status"] == 500


def record(message: str = "request", **found: Any) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "levelname": "INFO", **fields(**found)})


def test_lines_for_people() -> None:
    line = TextLines().format(record(status=200, agent='a "b"\nstatus=500', error=None))
    assert line.endswith(r'INFO    request status=200 agent="a \"b\"\nstatus=500"')
    assert "\n" not in line


def test_lines_for_machines() -> None:
    line = json.loads(JsonLines().format(record(status=200, agent="ä\n")))
    assert (line["level"], line["status"], line["agent"]) == ("info", 200, "ä\n")


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The root logger, as it was before when the test is over."""
    root = logging.getLogger()
    level = root.level
    monkeypatch.setattr(root, "handlers", list(root.handlers))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    yield root
    for handler in root.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.close()
    root.setLevel(level)


def test_a_file_that_is_moved_away_is_made_anew(untouched: logging.Logger, tmp_path: Path) -> None:
    file, old = tmp_path / "log", tmp_path / "log.1"
    start_logging("info", False, file)
    untouched.info("one")
    os.rename(file, old)
    untouched.info("two")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("three", stacklevel=1)
    assert old.read_text().endswith("INFO    one\n")
    two, three = file.read_text().splitlines()
    assert two.endswith("INFO    two")
    assert three.endswith("WARNING three")


def test_impossible_logs_are_refused(untouched: logging.Logger, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--log-level"):
        start_logging("loud")
    with pytest.raises(OptionError, match="--log-file"):
        start_logging("info", False, tmp_path / "no" / "log")
    assert untouched is logging.getLogger()
