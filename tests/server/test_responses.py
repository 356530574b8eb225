"""OpenAI's Responses API."""

import json
import re
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from penstock.chat.events import ArgumentsDelta, Done, Event, TextDelta, ToolCallFinished, ToolCallStarted
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.engine.requests import Failed
from penstock.engine.steps import Step
from penstock.errors import PenstockError
from penstock.server.api.responses.answer import Answer
from penstock.server.api.responses.request import ResponsesRequest
from penstock.server.service import Service
from penstock.server.usage import Usage

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


def test_what_a_client_sends_becomes_a_conversation() -> None:
    def said(role: str, kind: str, text: str) -> dict[str, Any]:
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    body = ResponsesRequest.model_validate(
        {
            "instructions": "Be kind.",
            "tools": [TOOL],
            "reasoning": {"effort": "max", "summary": "auto"},
            "text": {"format": {"type": "json_schema", "name": "city", "schema": {"type": "object"}}},
            "include": ["reasoning.encrypted_content"],
            "input": [
                said("developer", "input_text", "Be brief."),
                {"role": "user", "content": "Two cities."},
                {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Both."}]},
                said("assistant", "output_text", "I look."),
                {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "b", "name": "f", "arguments": '{"x": 1}'},
                {"type": "function_call_output", "call_id": "b", "output": "two"},
                {
                    "type": "function_call_output",
                    "call_id": "a",
                    "output": [{"type": "input_text", "text": "one"}],
                },
                {
                    "type": "reasoning",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "Done."}],
                },
                said("assistant", "output_text", "Both are."),
                said("assistant", "output_text", "Anything else?"),
            ],
        }
    )
    assert body.chat() == Conversation(
        (
            Message(Role.SYSTEM, "Be kind."),
            Message(Role.DEVELOPER, "Be brief."),
            Message(Role.USER, "Two cities."),
            Message(
                Role.ASSISTANT,
                "I look.",
                "Both.",
                (ToolCall("a", "f", "{}"), ToolCall("b", "f", '{"x": 1}')),
            ),
            Message(Role.TOOL, "two", tool_call_id="b"),
            Message(Role.TOOL, "one", tool_call_id="a"),
            Message(Role.ASSISTANT, "Both are.", "Done."),
            Message(Role.ASSISTANT, "Anything else?"),
        ),
        (FUNCTION,),
        Thinking.MAX,
        response_schema={"type": "object"},
    )


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, Thinking.OFF),
        ({"reasoning": {"summary": "auto"}}, Thinking.OFF),
        ({"reasoning": {"effort": "medium"}}, Thinking.HIGH),
        ({"model": "deepseek-reasoner"}, Thinking.HIGH),
        ({"model": "deepseek-reasoner", "reasoning": {"effort": "none"}}, Thinking.OFF),
    ],
)
def test_thinking_is_asked_for(fields: dict[str, Any], thinking: Thinking) -> None:
    assert ResponsesRequest.model_validate({"input": FRANCE, **fields}).chat().thinking is thinking


def test_json_can_be_asked_for() -> None:
    body = ResponsesRequest.model_validate({"input": "x", "text": {"format": {"type": "json_object"}}})
    assert body.chat().json_only


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]: images cannot be read",
        ),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]}, "'a' answers no call"),
        ({"input": "half \ud800"}, "surrogates"),
        ({"input": "word " * 3000}, "context"),
        ({"background": True}, "background: not supported"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt: not supported"),
        ({"truncation": "auto"}, "truncation: not supported"),
        ({"top_logprobs": 3}, "top_logprobs: not supported"),
        ({"include": ["message.output_text.logprobs"]}, "include: not supported"),
        ({"metadata": {"x": 1}}, "metadata.x"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]: the tool 'web_search' does not exist here"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "web_search"}},
            "tool_choice: 'web_search' is not supported",
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp", "name": "x"}]},
            },
            "tool_choice: the tool 'mcp' does not exist here",
        ),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"tools": [{"type": "function", "parameters": {}}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "other"}}, "'other'"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "'perhaps'"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "poem"}}}, "text.format.type"),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_nonsense_is_named(client: TestClient, fields: dict[str, Any], named: str, streamed: bool) -> None:
    body = json.dumps({"input": FRANCE, "stream": streamed} | fields)
    answer = client.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert named in answer.json()["error"]["message"]


def test_an_error_in_the_middle_of_a_stream_ends_it(
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


# ── custom tools ──────────────────────────────────────────────────────────────────────────────────────────

PATCH = """start: "*** Begin Patch" LF line+ "*** End Patch"
line: "+" /(.*)/ LF
%import common.LF"""
CUSTOM = [*TEXT[:1], "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"]


def custom(**format: Any) -> dict[str, Any]:
    return {
        "type": "custom",
        "name": "edit",
        "description": "Edits",
        **({"format": format} if format else {}),
    }


@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        ({}, r"(?s).*"),
        ({"type": "text"}, r"(?s).*"),
        ({"type": "grammar", "syntax": "regex", "definition": r"[a-c/]{2,5}</x"}, r"[a-c/]{2,5}</x"),
        (
            {"type": "grammar", "syntax": "lark", "definition": 'start: "ls " /[a-z]{1,8}/ ("/" /[a-z]/)?'},
            r"ls [a-z]{1,8}(/[a-z])?",
        ),
    ],
)
def test_a_custom_tool_is_called_with_text(client: TestClient, format: Any, pattern: str) -> None:
    body = {"tools": [TOOL, custom(**format)], "tool_choice": {"type": "custom", "name": "edit"}}
    limits = {"max_output_tokens": 300, "temperature": 1, "parallel_tool_calls": False}
    events = stream(client, FRANCE, **body, **limits)
    response = events[-1]["response"]
    assert (response["tools"][1]["format"], response["tool_choice"]) == (
        format or {"type": "text"},
        body["tool_choice"],
    )
    if response["status"] == "completed" or format.get("type") == "grammar":
        (call,) = response["output"]
        assert told(events) == ["created", "in_progress", *CUSTOM, "completed"]
        assert (call["type"], call["name"]) == ("custom_tool_call", "edit")
        assert re.fullmatch(pattern, call["input"])
        history = [
            {"role": "user", "content": FRANCE},
            call,
            {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"},
        ]
        assert ask(client, history, **body)["output"]


def test_tools_of_a_namespace(client: TestClient) -> None:
    space = {"type": "namespace", "name": "sky", "description": "Weather", "tools": [TOOL, custom()]}
    named = {"type": "function", "namespace": "sky", "name": "get_weather"}
    response = ask(client, WEATHER, tools=[TOOL, space], tool_choice=named, parallel_tool_calls=False)
    (call,) = response["output"]
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "sky", "get_weather")
    assert (response["tools"][1], response["tool_choice"]) == (space, named)
    body = ResponsesRequest.model_validate({"input": [call], "tools": [TOOL, space]}).chat()
    assert [tool["name"] for tool in body.tools] == ["get_weather", "sky.get_weather", "sky.edit"]
    assert body.messages[0].tool_calls[0].name == "sky.get_weather"


def test_a_grammar_for_lines_lets_values_hold_tags(service: Service) -> None:
    tools = [custom(type="grammar", syntax="lark", definition=PATCH)]
    body = ResponsesRequest.model_validate(
        {"input": FRANCE, "tools": tools, "tool_choice": {"type": "custom", "name": "edit"}}
    )
    reply = service.reply(body.chat(), body.sampling(), forced=True)
    constraint = reply.constraint()
    assert constraint is not None
    mark = service.engine.tokenizer.token_id("｜DSML｜")
    text = "*** Begin Patch\n+a </b> c\n*** End Patch"
    assert mark is not None
    spelled: list[str | int] = [
        *("<", mark, 'invoke name="edit">\n<', mark, 'parameter name="input" string="true">' + text + "</"),
        *(mark, "parameter>\n</", mark, "invoke>\n</", mark, "tool_calls>"),
    ]
    for part in spelled:
        for token in [part] if isinstance(part, int) else service.engine.tokenizer.encode(part):
            assert np.isfinite(constraint.mask(np.zeros(service.engine.config.vocab_size, np.float32))[token])
            constraint.accept(token)


@pytest.mark.parametrize(
    "format",
    [
        {"type": "grammar", "syntax": "lark", "definition": "start: nothing"},
        {"type": "grammar", "syntax": "regex", "definition": "(?=look)ahead"},
        {"type": "grammar", "syntax": "regex", "definition": "("},
    ],
)
def test_a_grammar_that_cannot_be_used_is_refused(client: TestClient, format: Any) -> None:
    reply: Any = client.post("/v1/responses", json={"input": FRANCE, "tools": [custom(**format)]})
    assert reply.status_code == 400
    assert "tools: the grammar of 'edit'" in reply.json()["error"]["message"]


def test_ids_are_not_repeated(client: TestClient) -> None:
    first, second = ask(client, FRANCE), ask(client, FRANCE)
    assert first["id"] != second["id"]
    assert first["output"][0]["id"] != second["output"][0]["id"]
