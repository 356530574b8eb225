"""Who comes in, and how much they may bring: keys, bodies, methods, JSON, other origins."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from penstock.errors import OptionError
from penstock.server.app import create_app
from penstock.server.service import Service
from penstock.server.settings import Settings

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


def test_a_body_that_is_too_large(client: TestClient, service: Service) -> None:
    reply = client.post(CHAT, content=b" " * (service.settings.max_body + 1), headers=JSON)
    assert reply.status_code == 413


def test_a_body_in_chunks_is_counted_while_it_is_read(client: TestClient, service: Service) -> None:
    sent = 0

    def body(total: int) -> Iterator[bytes]:
        nonlocal sent
        for _ in range(total >> 16):
            sent += 1 << 16
            yield b" " * (1 << 16)

    most = service.settings.max_body
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
    reply = client.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]
