"""Anthropic's Messages API."""

import asyncio
import json
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from starlette.testclient import TestClient

from penstock.chat.events import Done, Event, TextDelta, ToolCallFinished, ToolCallStarted
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.engine.requests import Failed
from penstock.engine.steps import Step
from penstock.errors import PenstockError
from penstock.server.api.anthropic import PING, Answer, messages
from penstock.server.api.anthropic_request import CountRequest, MessagesRequest
from penstock.server.http.streams import EventStream
from penstock.server.service import Service
from penstock.server.usage import Usage

ORPHAN = {"type": "tool_result", "tool_use_id": "toolu_sent", "content": "x"}
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": TOOL["input_schema"]}


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


def test_an_answer(client: TestClient, service: Service) -> None:
    answer = ask(client, FRANCE)
    usage = answer.pop("usage")
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": service.settings.name,
        "content": [{"type": "text", "text": "The capital of France is Paris."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    counted = client.post("/v1/messages/count_tokens", json={"messages": FRANCE}).json()["input_tokens"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted
    assert usage["output_tokens"] > 5


@pytest.mark.parametrize(
    ("messages", "fields"),
    [
        (FRANCE, {}),
        (FRANCE, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (FRANCE, {"max_tokens": 3}),
        (FRANCE, {"stop_sequences": ["is Par", "France"]}),
        (WEATHER, {"tools": [TOOL]}),
        (WEATHER, {"tools": [TOOL], "max_tokens": 30}),
    ],
)
def test_a_stream_tells_of_the_same_message(
    client: TestClient, messages: list[dict[str, Any]], fields: dict[str, Any]
) -> None:
    whole, streamed = ask(client, messages, **fields), put_together(stream(client, messages, **fields))
    for answer in (whole, streamed):
        del answer["id"], answer["usage"]["input_tokens"], answer["usage"]["cache_read_input_tokens"]
        for block in answer["content"]:
            block.pop("id", None)
    assert streamed == whole


def test_reasoning_is_a_block_of_its_own(client: TestClient) -> None:
    thinking, text = ask(client, FRANCE, thinking={"type": "adaptive"})["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "A simple fact: Paris.")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "The capital of France is Paris."}


def test_a_call_of_a_tool_and_its_result(client: TestClient) -> None:
    answer = ask(client, WEATHER, tools=[TOOL])
    (call,) = answer["content"]
    assert answer["stop_reason"] == "tool_use"
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "get_weather", {"city": "Paris"})
    assert call["id"].startswith("toolu_")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    history: list[dict[str, Any]] = [
        *WEATHER,
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    assert ask(client, history, tools=[TOOL])["content"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_a_call_can_be_forced(client: TestClient, choice: dict[str, str]) -> None:
    answer = ask(client, FRANCE, tools=[TOOL], tool_choice=choice, thinking={"type": "adaptive"})
    assert [block["type"] for block in answer["content"]] == ["tool_use"]


def test_a_choice_does_not_change_the_prompt(client: TestClient) -> None:
    with_tools: dict[str, Any] = {"messages": WEATHER, "tools": [TOOL]}
    counts = [
        client.post("/v1/messages/count_tokens", json={**with_tools, "tool_choice": {"type": choice}}).json()
        for choice in ("none", "auto")
    ]
    assert counts[0] == counts[1]
    answer = ask(client, **with_tools, tool_choice={"type": "none"})
    assert all(block["type"] == "text" for block in answer["content"])


def test_a_stop_sequence_is_named_and_not_shown(client: TestClient) -> None:
    answer = ask(client, FRANCE, stop_sequences=["nothing", "France"])
    assert answer["content"] == [{"type": "text", "text": "The capital of "}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "France")


def test_the_limit_is_a_reason_to_stop(client: TestClient) -> None:
    answer = ask(client, FRANCE, max_tokens=2)
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 2)


def test_the_end_of_an_answer_can_be_given(client: TestClient) -> None:
    begun = [*FRANCE, {"role": "assistant", "content": "The capital of France"}]
    assert ask(client, begun)["content"] == [{"type": "text", "text": " is Paris."}]


def test_a_message_may_be_empty(client: TestClient) -> None:
    assert ask(client, [{"role": "user", "content": []}], max_tokens=1)["usage"]["output_tokens"] == 1


def test_what_a_client_sends_becomes_a_conversation() -> None:
    body = CountRequest.model_validate(
        {
            "system": [
                {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "kind."},
            ],
            "tools": [TOOL],
            "thinking": {"type": "enabled", "budget_tokens": 5000},
            "output_config": {
                "effort": "max",
                "format": {"type": "json_schema", "schema": {"type": "object"}},
            },
            "metadata": {"user_id": "somebody"},
            "messages": [
                {"role": "user", "content": "Two cities."},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Both.", "signature": "x"},
                        {"type": "redacted_thinking", "data": "?"},
                        {"type": "text", "text": "I look."},
                        {
                            "type": "tool_use",
                            "id": "toolu_1",
                            "name": "get_weather",
                            "input": {"city": "Paris"},
                        },
                        {"type": "tool_use", "id": "own-id", "name": "get_weather", "input": {}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sun"},
                        {
                            "type": "tool_result",
                            "tool_use_id": "own-id",
                            "is_error": True,
                            "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "city"}],
                        },
                        {"type": "text", "text": "Go on."},
                    ],
                },
            ],
        }
    )
    calls = (ToolCall("call_1", "get_weather", '{"city": "Paris"}'), ToolCall("own-id", "get_weather", "{}"))
    assert body.conversation() == Conversation(
        (
            Message(Role.SYSTEM, "Be\nkind."),
            Message(Role.USER, "Two cities."),
            Message(Role.ASSISTANT, "I look.", "Both.", calls),
            Message(Role.TOOL, "sun", tool_call_id="call_1"),
            Message(Role.TOOL, "no\n\ncity", tool_call_id="own-id"),
            Message(Role.USER, "Go on."),
        ),
        (FUNCTION,),
        Thinking.MAX,
        response_schema={"type": "object"},
    )


def test_documents_are_text() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "All men are mortal."}
    blocks = {
        "type": "content",
        "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}],
    }
    call = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    found = {
        "type": "search_result",
        "source": "http://x",
        "title": "X",
        "content": [{"type": "text", "text": "Y"}],
    }
    content = [
        {
            "type": "document",
            "source": plain,
            "title": "Logic",
            "context": "A premise",
            "citations": {"enabled": False},
        },
        {"type": "document", "source": blocks},
        {"type": "document", "source": {"type": "content", "content": "Three."}},
        {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [{"type": "document", "source": plain}, found],
        },
    ]
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": content}]
    _, *messages = CountRequest.model_validate({"messages": turns}).conversation().messages
    assert [message.content for message in messages] == [
        "Logic\n\nA premise\n\nAll men are mortal.",
        "One.\nTwo.",
        "Three.",
        "All men are mortal.\n\nX\n\nhttp://x\n\nY",
    ]


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking.OFF),
        ({"output_config": {"effort": "high"}}, Thinking.OFF),
        ({"model": "deepseek-reasoner"}, Thinking.HIGH),
        ({"model": "deepseek-reasoner", "thinking": {"type": "disabled"}}, Thinking.OFF),
        ({"thinking": {"type": "adaptive"}}, Thinking.HIGH),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, Thinking.LOW),
    ],
)
def test_thinking_is_asked_for(fields: dict[str, Any], thinking: Thinking) -> None:
    assert CountRequest.model_validate({"messages": FRANCE, **fields}).conversation().thinking is thinking


USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
DEEP = json.loads("[" * 400 + "]" * 400)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages.0.content.0",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages.0.content.0: images cannot",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "messages.0.content.0.source: documents other than plain text cannot be read",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "poem"}]}]}, "messages.0.content.0.type"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "w"}]},
            "tools.0: the tool 'web_search_20250305'",
        ),
        ({"mcp_servers": [{"type": "url", "url": "http://x"}]}, "mcp_servers"),
        ({"stop_sequences": ["a", "b", "c", 4]}, "stop_sequences.3"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences.16"),
        ({"messages": [{"role": "user", "content": [ORPHAN]}]}, "'toolu_sent' answers no"),
        ({"messages": [{"role": "user", "content": [USE]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [RESULT]}]}, "'a' answers no tool_use"),
        ({"messages": [{"role": "assistant", "content": [RESULT]}]}, "messages.0.content.0"),
        ({"messages": [*FRANCE, {"role": "assistant", "content": [USE]}]}, "results must follow"),
        ({"messages": [{"role": "user", "content": "half \ud800"}]}, "surrogates"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1 << 70}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"stop_sequences": ["x" * 1025]}, "stop_sequences"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema"),
        ({"tools": [{"name": "f", "input_schema": {"deep": DEEP}}]}, "tools.0.input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "'other'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": True}, "thinking"),
        ({"output_config": {"effort": "enormous"}}, "output_config.effort"),
        ({"messages": [{"role": "user", "content": "word " * 9000}]}, "context"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_nonsense_is_named(client: TestClient, fields: dict[str, Any], named: str, streamed: bool) -> None:
    body = json.dumps(request(FRANCE, stream=streamed) | fields)
    answer = client.post("/v1/messages", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    error = answer.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert named in error["error"]["message"]


def test_an_error_in_the_middle_of_a_stream_is_an_event(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = service.scheduler.submit

    def failing(asked: Any) -> None:
        emit = asked.emit

        def broken(update: Any) -> None:
            emit(Failed(PenstockError("the disk is gone")) if isinstance(update, Step) else update)

        asked.emit = broken
        submit(asked)

    monkeypatch.setattr(service.scheduler, "submit", failing)
    first, *_, last = stream(client, FRANCE)
    assert first["type"] == "message_start"
    assert last == {"type": "error", "error": {"type": "overloaded_error", "message": "the disk is gone"}}


@pytest.mark.usefixtures("client")  # which runs the service
def test_pings_come_while_nothing_else_does(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, heard = service.scheduler.submit, threading.Event()

    def patient(asked: Any) -> None:
        emit = asked.emit

        def wait_for_ping(update: Any) -> None:
            assert not isinstance(update, Step) or heard.wait(120)
            emit(update)

        asked.emit = wait_for_ping
        submit(asked)

    async def listen() -> list[str]:
        app = SimpleNamespace(state=SimpleNamespace(service=service))
        body = MessagesRequest.model_validate(request(FRANCE, stream=True))
        answer = await messages(body, Request({"type": "http", "app": app}))
        assert isinstance(answer, EventStream)
        text = ""
        async for piece in answer.body_iterator:  # one event or several
            text += str(piece)
            if PING in text:
                heard.set()
        return [f"{event}\n\n" for event in text.removesuffix("\n\n").split("\n\n")]

    monkeypatch.setattr(service.scheduler, "submit", patient)
    monkeypatch.setattr(service, "settings", replace(service.settings, ping=0.01))
    lines = asyncio.run(listen())
    assert any(line.endswith(PING) for line in lines)
    assert lines[-1].startswith("event: message_stop\n")


def test_a_call_that_is_cut_off_is_never_announced() -> None:
    answer = Answer("model", Usage())
    told: list[Event] = [ToolCallStarted(0, "call_1", "f"), TextDelta("<f"), Done("length")]
    events = [made for event in told for made in answer.read(event)]
    assert [event["type"] for event in events] == [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ]
    assert (answer.content, answer.stop_reason) == ([{"type": "text", "text": "<f"}], "max_tokens")


def test_arguments_that_python_cannot_read_are_passed_on_as_text() -> None:
    answer = Answer("model", Usage())
    call = ToolCall("call_1", "f", '{"digits": ' + "9" * 5000 + "}")  # more than Python reads
    for event in (TextDelta("the EN"), ToolCallFinished(0, call), Done("tool_calls")):
        list(answer.read(event))
    text, use = answer.content
    assert text == {"type": "text", "text": "the EN"}
    assert use["input"] == {"arguments": call.arguments}


def test_sampling_fields_are_passed_on() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
    sampling = MessagesRequest.model_validate(request(FRANCE) | fields).sampling()
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 5)
