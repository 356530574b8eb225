"""A client of the Responses API, as its tests need one."""

import json
from typing import Any

from starlette.testclient import TestClient

FRANCE = "What is the capital of France?"
WEATHER = "What is the weather in Paris?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS}
TOOL = {"type": "function", **FUNCTION, "strict": False}


def ask(client: TestClient, input: Any, **fields: Any) -> dict[str, Any]:
    answer = client.post("/v1/responses", json={"input": input, "temperature": 0, **fields})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def stream(client: TestClient, input: Any, **fields: Any) -> list[dict[str, Any]]:
    """The events of a streamed answer, whose names must be their types, numbered from 0."""
    body = {"input": input, "temperature": 0, "stream": True, **fields}
    answer = client.post("/v1/responses", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    events = []
    for text in answer.text.strip().split("\n\n"):
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def told(events: list[dict[str, Any]]) -> list[str]:
    """Types of events, with several deltas in a row told once."""
    kinds = [event["type"].removeprefix("response.") for event in events]
    return [
        kind
        for kind, before in zip(kinds, ["", *kinds[:-1]], strict=True)
        if kind != before or "delta" not in kind
    ]


REASONING = [
    "output_item.added",
    "reasoning_summary_part.added",
    "reasoning_summary_text.delta",
    "reasoning_summary_text.done",
    "reasoning_summary_part.done",
    "output_item.done",
]
TEXT = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
CALL = [
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
]
