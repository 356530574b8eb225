"""Anthropic's Messages API: an answer, whole and in pieces."""

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from starlette.testclient import TestClient

from penstock.chat.events import Done, Event, TextDelta, ToolCallFinished, ToolCallStarted
from penstock.chat.messages import ToolCall
from penstock.engine.steps import Step
from penstock.server.api.anthropic import PING, Answer, messages
from penstock.server.api.anthropic_request import MessagesRequest
from penstock.server.http.streams import EventStream
from penstock.server.service import Service
from penstock.server.usage import Usage
from tests.server.ask_anthropic import FRANCE, TOOL, WEATHER, ask, put_together, request, stream


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


@pytest.mark.usefixtures("failing_steps")
def test_an_error_in_the_middle_of_a_stream_is_an_event(client: TestClient) -> None:
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
