"""A client of chat completions, as its tests need one."""

import json
from typing import Any

from starlette.testclient import TestClient

from tests.server.conftest import events

HELLO: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "temperature": 0,
    "max_tokens": 60,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK_WEATHER = {
    **HELLO,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [WEATHER],
}


def post(client: TestClient, body: dict[str, Any], **more: Any) -> Any:
    reply = client.post("/v1/chat/completions", json={**body, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(client: TestClient, body: dict[str, Any], **more: Any) -> list[Any]:
    reply = client.post("/v1/chat/completions", json={**body, "stream": True, **more})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events(reply.text)


def refused(client: TestClient, **more: Any) -> Any:
    body = json.dumps({**HELLO, **more})  # escaped: also what is not text can be sent
    reply = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def deltas(chunks: list[Any], index: int = 0) -> list[Any]:
    """Of one choice: its deltas, then its finish reason."""
    own = [c for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index]
    assert [c["finish_reason"] is None for c in own] == [True] * (len(own) - 1) + [False]
    return [c["delta"] for c in own[:-1]] + [own[-1]["finish_reason"]]


def joined(parts: list[Any], field: str) -> str:
    return "".join(part.get(field, "") for part in parts[:-1])
