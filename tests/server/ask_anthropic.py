"""A client of the Messages API, as its tests need one."""

import json
from typing import Any

from starlette.testclient import TestClient

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def request(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"model": "any", "max_tokens": 100, "temperature": 0, "messages": messages, **fields}


def ask(client: TestClient, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/messages", json=request(messages, **fields))
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def stream(client: TestClient, messages: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer, whose names must be their types."""
    answer = client.post("/v1/messages", json=request(messages, stream=True, **fields))
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    events = []
    for text in answer.text.strip().split("\n\n"):
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream tells of, read as a client does; blocks must be opened, filled and closed in turn."""
    events = [event for event in events if event["type"] != "ping"]
    assert [events[0]["type"], *[e["type"] for e in events[-2:]]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message: dict[str, Any] = events[0]["message"]
    is_open, json_text = False, ""
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            is_open, json_text = True, ""
            continue
        assert is_open
        assert event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        match event:
            case {"type": "content_block_stop"}:
                is_open = False
                if block["type"] == "tool_use":
                    block["input"] = json.loads(json_text)
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                json_text += text
            case {"delta": {"type": "thinking_delta" | "text_delta" | "signature_delta", **more}}:
                ((field, text),) = more.items()
                block[field] += text
            case _:
                raise AssertionError(event)
    assert not is_open
    return {**message, **events[-2]["delta"], "usage": events[-2]["usage"]}
