"""OpenAI's Responses API: an answer, whole and in pieces."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.chat.events import ArgumentsDelta, Done, Event, TextDelta, ToolCallFinished, ToolCallStarted
from penstock.chat.messages import ToolCall
from penstock.server.api.responses.answer import Answer
from penstock.server.service import Service
from penstock.server.usage import Usage
from tests.server.ask_responses import CALL, FRANCE, REASONING, TEXT, TOOL, WEATHER, ask, stream, told


@pytest.mark.parametrize(
    ("input", "fields", "expected"),
    [
        (FRANCE, {}, [*TEXT, "completed"]),
        (FRANCE, {"reasoning": {"effort": "high"}}, [*REASONING, *TEXT, "completed"]),
        (FRANCE, {"max_output_tokens": 3}, [*TEXT, "incomplete"]),
        (WEATHER, {"tools": [TOOL]}, [*CALL, "completed"]),
    ],
)
def test_the_life_of_a_response(
    client: TestClient, input: str, fields: dict[str, Any], expected: list[str]
) -> None:
    events = stream(client, input, **fields)
    assert told(events) == ["created", "in_progress", *expected]
    assert (events[0]["response"]["status"], events[0]["response"]["output"]) == ("in_progress", [])

    items: list[dict[str, Any]] = []
    for event in events:
        match event:
            case {"type": "response.output_item.added", "item": item}:
                assert (item["status"], event["output_index"]) == ("in_progress", len(items))
                items.append(item)
                pieces = ""
            case {"type": "response.output_item.done", "item": item}:
                assert item["id"] == items[-1]["id"]
                items[-1] = item
            case {"item_id": item_id}:
                assert (item_id, event["output_index"]) == (items[-1]["id"], len(items) - 1)
                pieces += event.get("delta", "")
                assert event.get("text", pieces) == pieces
                assert event.get("arguments", pieces) == pieces
    assert events[-1]["response"]["output"] == items


@pytest.mark.parametrize(
    ("input", "fields"),
    [
        (FRANCE, {"instructions": "Be brief.", "reasoning": {"effort": "high", "summary": "auto"}}),
        (FRANCE, {"max_output_tokens": 3}),
        (WEATHER, {"tools": [TOOL], "tool_choice": "auto"}),
    ],
)
def test_a_stream_tells_of_the_same_response(client: TestClient, input: str, fields: dict[str, Any]) -> None:
    whole, streamed = ask(client, input, **fields), stream(client, input, **fields)[-1]["response"]
    for response in (whole, streamed):
        del response["id"], response["created_at"], response["usage"]["input_tokens_details"]
        for item in response["output"]:
            del item["id"]
            item.pop("call_id", None)
    assert streamed == whole


def test_a_response(client: TestClient, service: Service) -> None:
    response = ask(client, FRANCE, instructions="Be brief.", reasoning={"effort": "low"}, store=True)
    reasoning, message = response["output"]
    assert reasoning["id"].startswith("rs_")
    assert reasoning["summary"][0]["type"] == "summary_text"
    assert reasoning["summary"][0]["text"]
    assert (message["role"], message["status"]) == ("assistant", "completed")
    assert message["content"][0]["type"] == "output_text"
    assert response["id"].startswith("resp_")
    assert (response["object"], response["status"]) == ("response", "completed")
    assert (response["model"], response["instructions"]) == (service.settings.name, "Be brief.")
    assert (response["error"], response["incomplete_details"]) == (None, None)
    assert (response["tools"], response["tool_choice"], response["store"]) == ([], "auto", True)
    assert "output_text" not in response
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]


def test_the_limit_makes_it_incomplete(client: TestClient) -> None:
    response = ask(client, FRANCE, max_output_tokens=3)
    assert (response["status"], response["usage"]["output_tokens"]) == ("incomplete", 3)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"


def test_a_call_and_its_output(client: TestClient) -> None:
    response = ask(client, WEATHER, tools=[TOOL])
    (call,) = response["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert json.loads(call["arguments"]) == {"city": "Paris"}
    assert call["call_id"].startswith("call_")
    assert [tool["name"] for tool in response["tools"]] == ["get_weather"]
    history = [
        {"role": "user", "content": WEATHER},
        call,
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"},
    ]
    assert ask(client, history, tools=[TOOL])["output"]


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "function", "name": "get_weather"},
        {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
    ],
)
def test_a_call_can_be_forced(client: TestClient, choice: Any) -> None:
    response = ask(client, FRANCE, tools=[TOOL], tool_choice=choice, reasoning={"effort": "high"})
    assert [item["type"] for item in response["output"]] == ["function_call"]
    assert response["tool_choice"] == choice
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.usefixtures("failing_steps")
def test_an_error_in_the_middle_of_a_stream_ends_it(client: TestClient) -> None:
    events = stream(client, FRANCE)
    assert told(events) == ["created", "in_progress", "failed"]
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "the disk is gone"}


def test_a_call_that_is_cut_off_is_never_announced() -> None:
    progress = Answer("model", 0, {}, Usage())
    turn: list[Event] = [
        ToolCallStarted(0, "call_1", "f"),
        ArgumentsDelta(0, "{"),
        ToolCallFinished(0, ToolCall("call_1", "f", "{}")),
        ToolCallStarted(1, "call_2", "g"),
        TextDelta("<g"),
        Done("length"),
    ]
    events = [made for event in turn for made in progress.read(event)] + list(progress.end())
    assert told(events) == [*CALL, *TEXT, "incomplete"]
    assert progress.response["output"][0]["call_id"] == "call_1"


def test_what_was_sent_comes_back(client: TestClient) -> None:
    sent = {
        "metadata": {"run": "7"},
        "tools": [TOOL, {**TOOL, "name": "other", "strict": True}],
        "text": {
            "verbosity": "low",
            "format": {"type": "json_schema", "name": "x", "schema": {}, "strict": True},
        },
        "prompt_cache_key": "k",
        "max_output_tokens": 1,
        "user": "u",
    }
    response = ask(client, FRANCE, **sent)
    assert {name: response[name] for name in sent} == sent


def test_ids_are_not_repeated(client: TestClient) -> None:
    first, second = ask(client, FRANCE), ask(client, FRANCE)
    assert first["id"] != second["id"]
    assert first["output"][0]["id"] != second["output"][0]["id"]
