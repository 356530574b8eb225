"""Who comes in, and how much they may bring: keys, heads, bodies, methods, JSON, other origins; and how long it may
take."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.engine.engine import Engine
from penstock.errors import BudgetError, OptionError, PenstockError, ReadError, TokenError
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.errors import api_error
from penstock.server.http.settings import Settings
from penstock.server.service import Service

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def guarded(service: Service) -> TestClient:
    """Asks for a key.  Without a `with` nothing is started or stopped: the engine is everybody's."""
    settings = Settings(api_keys=("one", "two"), cors=("https://ok.example",))
    return TestClient(create_app(Service(service.engine, settings)))


@pytest.mark.parametrize(
    "headers", [{"Authorization": "Bearer one"}, {"Authorization": "bearer two"}, {"x-api-key": "two"}]
)
def test_a_key_opens(guarded: TestClient, headers: dict[str, str]) -> None:
    assert guarded.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer on"}, {"Authorization": "one"}, {"x-api-key": ""}]
)
def test_without_a_key_nothing_opens(guarded: TestClient, headers: dict[str, str]) -> None:
    reply = guarded.get("/v1/models", headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["type"] == "authentication_error"


def test_browsers_may_call_from_chosen_origins(guarded: TestClient) -> None:
    for origin, allowed in (("https://ok.example", "https://ok.example"), ("https://no.example", None)):
        headers = {"Origin": origin, "Authorization": "Bearer one"}
        reply = guarded.get("/v1/models", headers=headers)
        assert reply.headers.get("access-control-allow-origin") == allowed


def test_beyond_this_machine_a_key_is_needed() -> None:
    with pytest.raises(OptionError, match="--api-key"):
        Settings(host="0.0.0.0")
    assert Settings(host="0.0.0.0", api_keys=("k",)).host == "0.0.0.0"
    assert Settings(host="0.0.0.0", no_key=True).host == "0.0.0.0"
    with pytest.raises(OptionError, match="choose one"):
        Settings(host="0.0.0.0", no_key=True, api_keys=("k",))


def test_a_body_that_is_too_large(client: TestClient, service: Service) -> None:
    reply = client.post(CHAT, content=b" " * (service.max_body + 1), headers=JSON)
    assert reply.status_code == 413


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "many"])
def test_a_length_that_is_none(client: TestClient, length: str) -> None:
    reply = client.post(CHAT, content=b"{}", headers={**JSON, "content-length": length})
    assert (reply.status_code, reply.json()["error"]["code"]) == (413, "request_too_large")


def test_a_body_in_chunks_is_counted_while_it_is_read(client: TestClient, service: Service) -> None:
    sent = 0

    def body(total: int) -> Iterator[bytes]:
        nonlocal sent
        for _ in range(total >> 16):
            sent += 1 << 16
            yield b" " * (1 << 16)

    most = service.max_body
    reply = client.post(CHAT, content=body(most + (1 << 16)), headers=JSON)
    assert reply.request.headers["transfer-encoding"] == "chunked"
    assert (reply.status_code, sent) == (413, most + (1 << 16))
    assert reply.json()["error"]["code"] == "request_too_large"
    assert client.post(CHAT, content=body(most), headers=JSON).status_code == 400  # fits, but is no JSON


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"messages": ' + b"9" * 5000 + b"}"]
)
def test_what_is_not_a_request_is_refused(client: TestClient, body: bytes) -> None:
    reply = client.post(CHAT, content=body, headers=JSON)
    assert reply.status_code == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", CHAT, 405), ("POST", "/v1/nothing", 404)])
def test_wrong_method_and_path(client: TestClient, method: str, path: str, status: int) -> None:
    reply = client.request(method, path, headers=JSON)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


# ── heads and slow bodies ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "headers",
    [{"a": "x" * (64 << 10)}, {f"a{number}": "x" for number in range(10_000)}],
    ids=["long", "many"],
)
def test_a_head_that_is_too_large(client: TestClient, headers: dict[str, str]) -> None:
    reply = client.get("/v1/models", headers=headers)
    assert (reply.status_code, reply.json()["error"]["code"]) == (431, "headers_too_large")
    assert client.get("/v1/models", headers={"a": "x" * 60_000}).status_code == 200


def test_a_body_that_does_not_come(service: Service) -> None:
    """The first piece is there, the rest never is; a body that is there may be answered for any time."""
    app = create_app(Service(service.engine, Settings(body_timeout=0.05)))
    sent: list[Any] = []

    async def scene() -> None:
        pieces = [{"type": "http.request", "body": b"{", "more_body": True}]

        async def receive() -> Any:
            if pieces:
                return pieces.pop()
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/messages",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        await asyncio.wait_for(app(scope, receive, send), 60)

    asyncio.run(scene())
    head, body = sent
    assert head["status"] == 408
    assert (b"connection", b"close") in head["headers"]
    assert b'"type":"timeout_error"' in body["body"]


# ── time ──────────────────────────────────────────────────────────────────────────────────────────────────

HELLO = [{"role": "user", "content": "Hello"}]
GREETING: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HELLO, "max_tokens": 9},
    "/v1/completions": {"prompt": "Hello", "ignore_eos": True, "max_tokens": 9},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 16},
}


@pytest.fixture
def hurried(service: Service, client: TestClient) -> TestClient:
    """An application that gives every request no time at all, on the scheduler that `client` runs."""
    del client
    settings = Settings(timeout=1e-9)
    return TestClient(create_app(Service(service.engine, settings, service.scheduler)))


@pytest.mark.parametrize("path", GREETING)
def test_a_request_that_takes_too_long(hurried: TestClient, path: str) -> None:
    reply: Any = hurried.post(path, json=GREETING[path])
    assert reply.status_code == 504
    error = reply.json()["error"]
    assert error["type"] == "timeout_error"
    assert "seconds" in error["message"]
    assert path == "/v1/messages" or error["code"] == "timeout"


@pytest.mark.parametrize("path", GREETING)
def test_a_stream_that_takes_too_long(
    service: Service, client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told so where the answer would go on: here the model stands still after the first token."""
    del client
    over, steps, begin = threading.Event(), iter(range(1000)), service.engine.stepper.begin

    def stand_still(work: Any, *more: Any) -> Any:
        if next(steps) > 0:
            over.wait(120)
        return begin(work, *more)

    monkeypatch.setattr(service.engine.stepper, "begin", stand_still)
    own = Service(service.engine, Settings(timeout=2), service.scheduler)
    body = {**GREETING[path], "stream": True, "temperature": 0}
    try:
        reply: Any = TestClient(create_app(own)).post(path, json=body)
    finally:
        over.set()
    assert reply.status_code == 200
    assert "took more than 2 seconds" in reply.text.splitlines()[-2]


# ── loading ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def loading() -> TestClient:
    """A server whose scheduler has not started, so that it has no weights."""
    engine = Engine(pocket_path(), threads=1, context=512, load=False)
    return TestClient(create_app(Service(engine, Settings(api_keys=("one",)))), headers={"x-api-key": "one"})


@pytest.mark.parametrize(
    ("path", "envelope"),
    [
        (
            CHAT,
            {
                "error": {
                    "message": "Loading model",
                    "type": "unavailable_error",
                    "param": None,
                    "code": "loading",
                }
            },
        ),
        (
            "/v1/messages",
            {"type": "error", "error": {"type": "overloaded_error", "message": "Loading model"}},
        ),
        ("/tokenize", {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}),
    ],
)
def test_without_weights_nothing_is_answered(loading: TestClient, path: str, envelope: object) -> None:
    reply: Any = loading.post(path, json={})
    assert (reply.status_code, reply.json()) == (503, envelope)
    assert int(reply.headers["retry-after"]) > 0
    assert loading.post(path, headers={"x-api-key": "two"}).status_code == 401


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/deepseek-v4", "/props", "/metrics", "/"])
def test_some_things_need_no_weights(loading: TestClient, path: str) -> None:
    assert loading.get(path).status_code == 200


def test_health_says_that_there_are_no_weights(loading: TestClient) -> None:
    reply: Any = loading.get("/health")
    assert (reply.status_code, reply.json()["error"]["message"]) == (503, "Loading model")


# ── what clients are told ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (TokenError("/home/me/model.gguf: token id: expected 0 to 7; found 9"), 400),
        (TokenError("model.gguf: the file holds no tokenizer"), 400),
        (OptionError("/home/me/model.gguf: the model has no MTP block"), 400),
        (ReadError("/home/me/model.gguf: an early end"), 503),
        (BudgetError("for /home/me/model.gguf more is needed"), 503),
        (PenstockError("/home/me/kv: something else"), 503),
    ],
)
def test_where_files_are_is_for_the_log(
    error: PenstockError, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = api_error(error)
    assert found.status == status
    assert "/home" not in found.message
    assert "gguf" not in found.message
    assert len(found.message) >= len("an early end")
    assert status == 400 or str(error) in caplog.text


def test_what_a_client_wrote_is_repeated() -> None:
    assert api_error(OptionError("stop is 'a/b', expected text")).message == "stop is 'a/b', expected text"


def test_a_token_that_is_not_there(client: TestClient) -> None:
    reply = client.post("/detokenize", json={"tokens": [1 << 20]})
    assert reply.json()["error"]["message"].startswith("token id: expected 0 to")


@pytest.mark.parametrize("wrong", [{"timeout": -1.0}, {"body_timeout": float("nan")}, {"kv_space": 0}])
def test_impossible_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Settings(**wrong)
