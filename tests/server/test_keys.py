"""Keys: who they belong to, how much each may ask for, and what is shown of them."""

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from penstock.engine.progress import PrefillProgress
from penstock.errors import OptionError
from penstock.server.http.app import create_app
from penstock.server.http.keys import Charge, Key, Keys, read_key_file
from penstock.server.http.settings import Settings
from penstock.server.service import Service

HELLO = [{"role": "user", "content": "Hello"}]
ASKING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 2},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2},
    "/tokenize": {"content": "Hello"},
}


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    file = folder / "keys"
    file.write_text(text)
    file.chmod(mode)
    return file


def test_a_line_is_a_key_with_a_name_and_limits(tmp_path: Path) -> None:
    file = key_file(
        tmp_path,
        "# people\nanna  sk-1 concurrency=2 tokens_per_minute=300\n\nsk-2\r\n ci sk-3 tokens_per_minute=5\n",
    )
    found = [(key.name, key.secret, key.concurrency, key.tokens_per_minute) for key in read_key_file(file)]
    assert found == [("anna", "sk-1", 2, 300), ("key-2", "sk-2", None, None), ("ci", "sk-3", None, 5)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no key in it"),
        ("# only this\n", "no key in it"),
        ("a k\nan/na sk-1\n", "line 2: expected a name"),
        ("anna sk-1 speed=3\n", "line 1: found 'speed=3', expected concurrency=N or tokens_per_minute=N"),
        ("anna sk-1 concurrency=0\n", "found 'concurrency=0'"),
        ("anna sk-1 concurrency=1 concurrency=2\n", "each once"),
        (f"anna sk-1 concurrency={'9' * 5000}\n", "found 'concurrency=9"),
        ("anna sk-1\nanna sk-2\n", "'anna' is there twice"),
        ("anna sk-1\nbert sk-1\n", "'bert' is there twice"),
    ],
)
def test_a_file_that_is_no_list_of_keys(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(OptionError, match="--api-key-file") as caught:
        Keys(file=key_file(tmp_path, text))
    assert told in str(caught.value)
    assert "sk-" not in str(caught.value)


@given(
    st.lists(
        st.text(st.sampled_from("anx1.=# \t\n\r\0é🙂"))
        | st.sampled_from(["concurrency=", "k tokens_per_minute=9"])
    )
)
@settings(deadline=None)
def test_any_text_is_keys_or_refused(parts: list[str]) -> None:
    with TemporaryDirectory() as folder:
        file = key_file(Path(folder), "".join(parts))
        found = []
        with suppress(OptionError):
            found = read_key_file(file)
        assert all(key.name and key.secret and not key.secret.isspace() for key in found)


def test_a_file_that_cannot_be_trusted(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be read"):
        read_key_file(tmp_path / "missing")
    with pytest.raises(OptionError, match="chmod 600"):
        read_key_file(key_file(tmp_path, "sk-1", mode=0o640))
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(OptionError, match="UTF-8"):
        read_key_file(tmp_path / "keys")


def test_the_file_can_change_while_keys_are_used(tmp_path: Path) -> None:
    keys = Keys(["given"], key_file(tmp_path, "anna sk-1\nbert sk-2\n"))
    assert [key.name for key in keys.all] == ["key-1", "anna", "bert"]
    anna = keys.find("sk-1")
    assert anna is not None
    anna.charge(read=5)
    key_file(tmp_path, "anna sk-1 concurrency=1\ncara sk-3\n")
    keys.reload()
    assert (keys.find("sk-2"), keys.find("sk-1")) == (None, anna)
    assert (anna.concurrency, anna.read) == (1, 5)
    key_file(tmp_path, "")
    with pytest.raises(OptionError):
        keys.reload()
    assert keys.find("sk-3") is not None


def test_a_key_may_be_given_in_several_ways(tmp_path: Path) -> None:
    keys = Keys(["sk-1", "sk-0", "sk-0"], key_file(tmp_path, "anna sk-1 concurrency=3\nsk-2\n"))
    assert [(key.name, key.secret) for key in keys.all] == [
        ("key-2", "sk-0"),
        ("anna", "sk-1"),
        ("key-5", "sk-2"),
    ]


@pytest.mark.parametrize("given", ["", "sk", "sk-1 ", "sk-é", "\udcff"])
def test_only_the_whole_key_opens(given: str) -> None:
    assert Keys(["sk-1"]).find(given) is None


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────


def open_with(service: Service, folder: Path, line: str) -> tuple[TestClient, Key]:
    """A server that has this key alone.  Not started: the engine is everybody's."""
    chosen = Settings(api_key_file=key_file(folder, line))
    other = Service(service.engine, chosen, service.scheduler)
    return TestClient(create_app(other), headers={"authorization": "Bearer sk-1"}), other.keys.all[0]


@pytest.mark.usefixtures("client")  # the scheduler runs
@pytest.mark.parametrize("path", ASKING)
def test_so_many_at_a_time(service: Service, tmp_path: Path, path: str) -> None:
    asked, key = open_with(service, tmp_path, "anna sk-1 concurrency=1")
    assert asked.post(path, json=ASKING[path]).status_code == 200
    with key.in_use():
        reply = asked.post(path, json=ASKING[path])
        assert asked.get("/v1/models").status_code == 200
        assert asked.post("/dashboard/markdown", json={}).status_code == 400  # it got there
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert_spelled(path, reply.json())
    assert asked.post(path, json=ASKING[path]).status_code == 200
    assert (key.requests, key.refused, key.active) == (3, 1, 0)


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("path", ASKING)
def test_so_many_tokens_a_minute(
    service: Service, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock(monkeypatch)
    asked, key = open_with(service, tmp_path, "anna sk-1 tokens_per_minute=60")
    key.charge(read=70)
    reply = asked.post(path, json=ASKING[path])
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "11")
    assert_spelled(path, reply.json())
    now[0] += 11
    assert asked.post(path, json=ASKING[path]).status_code == 200


def assert_spelled(path: str, body: dict[str, Any]) -> None:
    """As this API spells it."""
    error = body["error"]
    assert error["type"] == "rate_limit_error"
    assert "this API key" in error["message"]
    if path == "/v1/messages":
        assert body["type"] == "error"
    elif path.startswith("/v1/"):
        assert error["code"] == "rate_limit_exceeded"
    else:
        assert error["code"] == 429


def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("penstock.server.http.keys.monotonic", lambda: now[0])
    return now


def test_what_was_cached_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch)
    key = Key("anna", "sk-1", tokens_per_minute=100)
    charge = Charge(key)
    for done in (40, 48, 44, 60):  # a step that failed is begun again
        charge.add(PrefillProgress(done=done, total=60, cached=40))
    assert (key.read, key.debt()) == (20, 20)


def test_an_answer_is_charged_as_it_comes(client: TestClient, service: Service, tmp_path: Path) -> None:
    assert client.get("/health").status_code == 200
    asked, key = open_with(service, tmp_path, "anna sk-1")
    reply = asked.post("/v1/completions", json={"prompt": "Once upon a time in June", "max_tokens": 3})
    used = reply.json()["usage"]
    assert key.generated == used["completion_tokens"]
    assert key.read <= used["prompt_tokens"]


def test_a_stream_counts_until_its_end(service: Service, tmp_path: Path, client: TestClient) -> None:
    assert client.get("/health").status_code == 200
    asked, key = open_with(service, tmp_path, "anna sk-1 concurrency=1")
    seen = []
    body = {"messages": HELLO, "max_tokens": 8, "stream": True}
    with asked.stream("POST", "/v1/chat/completions", json=body) as reply:
        for _ in reply.iter_lines():
            seen.append(key.requests)
    assert (seen[0], key.active) == (1, 0)


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_have_names_and_no_keys(service: Service, tmp_path: Path) -> None:
    asked, key = open_with(service, tmp_path, "anna sk-1 concurrency=1 tokens_per_minute=60")
    key.charge(read=7, generated=3)
    with key.in_use():
        asked.post("/tokenize", json={"content": "a"})
        text = asked.get("/metrics").text
    for line in (
        'penstock_key_requests_total{key="anna",outcome="answered"} 1.0',
        'penstock_key_requests_total{key="anna",outcome="refused"} 1.0',
        'penstock_key_tokens_total{key="anna",kind="read"} 7.0',
        'penstock_key_tokens_total{key="anna",kind="generated"} 3.0',
        'penstock_key_active_requests{key="anna"} 1.0',
        'penstock_key_limit{key="anna",of="concurrency"} 1.0',
        'penstock_key_limit{key="anna",of="tokens_per_minute"} 60.0',
    ):
        assert line in text
    assert "sk-1" not in text
    assert "sk-1" not in asked.get("/props").text


def test_keys_do_not_show_in_what_is_printed() -> None:
    assert "sk-1" not in repr(Key("anna", "sk-1"))
    assert "sk-1" not in repr(Settings(api_keys=("sk-1",)))
