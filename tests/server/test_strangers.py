"""Web pages that would speak to the server in their visitor's name."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.service import Service

CHAT = "/v1/chat/completions"
ERASE = "/slots/0?action=erase"
LONG = {"messages": [{"role": "user", "content": "Remember these words. " * 40}], "max_tokens": 4}


@pytest.fixture(scope="module")
def named(service: Service) -> TestClient:
    """Has a name, and a page elsewhere that may call it.  Not started: the engine is everybody's."""
    settings = Settings(allowed_hosts=("box.lan",), cors=("https://ok.example",))
    other = Service(service.engine, settings, service.scheduler)
    return TestClient(create_app(other), base_url="http://127.0.0.1:8080")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("penstock.localhost:1", 200),
        ("127.0.0.1:8080", 200),
        ("127.9.9.9", 200),
        ("[::1]:8080", 200),
        ("box.lan", 200),
        ("box.lan.:80", 200),
        ("evil.example", 421),
        ("evil.example:8080", 421),
        ("localhost.evil.example", 421),
        ("10.0.0.7", 421),
        ("[fe80::1]", 421),
        ("[", 421),
    ],
)
def test_only_the_servers_own_names_are_answered(named: TestClient, host: str, status: int) -> None:
    """A page whose name resolves to this machine is of the same origin as what it asks for; its name is not ours."""
    for path in ("/health", "/props", "/", "/v1/models"):
        reply = named.get(path, headers={"host": host})
        assert reply.status_code == status, path
    if status == 421:
        assert "--allowed-host" in reply.json()["error"]["message"]


def test_a_star_answers_to_any_name(service: Service) -> None:
    other = Service(service.engine, Settings(allowed_hosts=("*",)), service.scheduler)
    assert TestClient(create_app(other)).get("/health", headers={"host": "any.example"}).status_code == 200


FORMS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]


@pytest.mark.parametrize("path", [ERASE, "/props", CHAT, "/v1/messages", "/tokenize"])
def test_a_form_changes_nothing(named: TestClient, path: str) -> None:
    for kind in FORMS:
        reply = named.post(path, content=b'{"parked": true}', headers={"content-type": kind})
        assert (reply.status_code, "content-type: application/json" in reply.text) == (415, True)
    assert named.post(path).status_code == 415


@pytest.mark.parametrize("headers", [{"authorization": "Bearer x"}, {"x-requested-with": "curl"}])
def test_a_header_that_no_form_has_will_do(named: TestClient, headers: dict[str, str]) -> None:
    assert named.post(ERASE, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://127.0.0.1:8080", 200),
        ("https://ok.example", 200),
        ("https://evil.example", 403),
        ("http://127.0.0.1:9999", 403),
        ("null", 403),
        ("http://[", 403),
        ("", 403),
    ],
)
def test_pages_from_elsewhere_ask_for_nothing(named: TestClient, origin: str, status: int) -> None:
    reply: Any = named.post("/tokenize", json={"content": "a"}, headers={"origin": origin})
    assert reply.status_code == status
    assert status == 200 or "--cors" in reply.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/health/", "/v1/models/", "/props//"])
def test_nobody_is_sent_elsewhere(named: TestClient, path: str) -> None:
    reply = named.get(path, follow_redirects=False)
    assert (reply.status_code, reply.headers.get("location")) == (200, None)


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "kv"
        (folder / "slots").mkdir(parents=True)
        (folder / "slots" / "old").write_text("what was said")
        return folder

    @pytest.fixture
    def client(self, folder: Path) -> Iterator[TestClient]:
        engine = Engine(pocket_path(), threads=1, context=512)
        settings = Settings(kv_dir=folder, kv_space=3 << 20)
        with TestClient(create_app(Service(engine, settings))) as client:
            yield client

    def test_nobody_else_reads_what_was_said(self, client: TestClient, folder: Path) -> None:
        assert client.post(CHAT, json=LONG).status_code == 200
        assert client.post("/slots/0?action=save", json={"filename": "mine"}).status_code == 200
        found = [folder, *folder.rglob("*")]
        assert {"mine", "old", "said.sqlite"} <= {path.name for path in found}
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) & 0o077 for path in found}
        assert not any(modes.values()), modes

    def test_sessions_saved_by_name_are_inside_the_space(self, client: TestClient, folder: Path) -> None:
        assert client.post(CHAT, json=LONG).status_code == 200
        for number in range(100):
            reply = client.post("/slots/0?action=save", json={"filename": f"n{number}"})
            if reply.status_code != 200:
                break
        assert (reply.status_code, "--kv-space" in reply.json()["error"]["message"]) == (507, True)
        assert sum(path.stat().st_size for path in (folder / "slots").iterdir()) <= 3 << 20
