"""Conversations go on where they were: in the next turn, after a restart, after a rest, from a file."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.engine.engine import Engine
from penstock.pocket import pocket_path
from penstock.server.http.app import create_app
from penstock.server.http.settings import Settings
from penstock.server.service import Service

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
LONG = "Remember these words: " + " ".join(f"word{number}" for number in range(120))


@contextmanager
def server(folder: Path | None, **options: Any) -> Iterator[TestClient]:
    engine = Engine(pocket_path(), threads=1, context=4096, **options)
    with TestClient(create_app(Service(engine, Settings(kv_dir=folder)))) as client:
        yield client


def chat(client: TestClient, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, "temperature": 0, "max_tokens": 40, **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def cached(answer: dict[str, Any]) -> int:
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[no-any-return]


def said(answer: dict[str, Any]) -> dict[str, Any]:
    return answer["choices"][0]["message"]  # type: ignore[no-any-return]


def asked(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_the_second_turn_after_a_restart(tmp_path: Path, temperature: float) -> None:
    """Hot answers are spelled in tokens that no encoder would choose; they are found all the same."""
    sampling = {"temperature": temperature, "seed": 3}
    first = [{"role": "system", "content": "Be brief."}, asked(LONG)]
    with server(tmp_path) as client:
        one = chat(client, first, **sampling)
        assert cached(one) == 0
    second = [*first, said(one), asked("What is 17 + 25?")]
    with server(tmp_path) as client:
        two = chat(client, second, **sampling)
        assert (
            cached(two) >= one["usage"]["total_tokens"] - 2
        )  # all but the last token, and the one that ended it
        three = chat(client, second, **sampling)  # a retry
        assert said(three) == said(two)
        assert cached(three) >= cached(two)
    if temperature == 0:
        with server(None) as client:
            assert said(chat(client, second, **sampling)) == said(two)


def test_tool_calls_come_back_in_any_spelling(tmp_path: Path) -> None:
    question = [asked("What is the weather in Paris?")]
    fields = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 120}
    with server(tmp_path) as client:
        one = chat(client, question, **fields)
    (call,) = said(one)["tool_calls"]
    call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=4)
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    with server(tmp_path) as client:
        two = chat(client, [*question, said(one), result], tools=[WEATHER])
        assert cached(two) >= one["usage"]["total_tokens"] - 2


def test_a_system_prompt_is_shared(tmp_path: Path) -> None:
    system = {"role": "system", "content": LONG}
    with server(tmp_path) as client:
        assert cached(chat(client, [system, asked("Hello")])) == 0
        assert cached(chat(client, [system, asked("What is 2 + 3?")])) > 100
    with server(tmp_path) as client:
        assert cached(chat(client, [system, asked("Bye")])) > 100


def test_damage_is_noticed_and_costs_only_time(tmp_path: Path) -> None:
    messages = [asked(LONG)]
    with server(tmp_path) as client:
        one = chat(client, messages)
    for path in tmp_path.iterdir():
        if path.suffix in (".prompt", ".end"):
            path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    with server(tmp_path) as client, pytest.warns(UserWarning, match="could not be loaded"):
        two = chat(client, messages)
    assert (cached(two), said(two)) == (0, said(one))


def test_parking_by_request(tmp_path: Path) -> None:
    with server(tmp_path, streaming="resident") as client:
        one = chat(client, [asked(LONG)])
        assert client.post("/props", json={"parked": True}).json() == {"parked": True, "state": "parked"}
        assert client.get("/health").json() == {"status": "parked"}
        props = client.get("/props").json()
        assert props["is_sleeping"] is props["penstock"]["parked"] is True
        assert props["penstock"]["sessions"]["kept"] == 0 < props["penstock"]["sessions"]["disk"]["kept"]
        assert client.get("/metrics").status_code == 200
        assert client.post("/tokenize", json={"content": "hi"}).json()["tokens"]
        again = chat(client, [asked(LONG)])  # brings them back
        assert said(again) == said(one)
        assert cached(again) > 100
        assert client.get("/health").json() == {"status": "ok"}
        client.post("/props", json={"parked": True})
        assert client.post("/props", json={"parked": False}).json() == {"parked": False, "state": "ready"}
        bodies: list[Any] = [{}, {"parked": "yes"}, [], {"parked": None}]
        for wrong in bodies:
            assert client.post("/props", json=wrong).status_code == 400


def test_slots_are_saved_and_restored_by_name(tmp_path: Path) -> None:
    def act(client: TestClient, action: str, name: str = "mine.bin", slot: int = 0) -> Any:
        return client.post(f"/slots/{slot}?action={action}", json={"filename": name})

    with server(tmp_path) as client:
        assert act(client, "save").status_code == 400  # nothing is idle
        one = chat(client, [asked(LONG)])
        saved = act(client, "save").json()
        assert saved["n_saved"] >= one["usage"]["total_tokens"] - 2
        assert saved["n_written"] == (tmp_path / "slots" / "mine.bin").stat().st_size
        assert act(client, "erase").json()["n_erased"] > 0
        for name in ("", "..", "../mine.bin", "a/b", "a\\b", ".hidden", "x" * 200, "nul\0"):
            for action in ("save", "restore"):
                assert act(client, action, name).status_code == 400, name
        assert act(client, "restore", "other").status_code == 404
        (tmp_path / "slots" / "noise").write_bytes(b"noise")
        assert act(client, "restore", "noise").status_code == 400
        assert str(tmp_path) not in act(client, "restore", "noise").text
        assert act(client, "restore").json()["n_restored"] == saved["n_saved"]
        assert act(client, "restore", slot=99).status_code == 400
    with server(None) as client:
        assert "--kv-dir" in act(client, "save").text
