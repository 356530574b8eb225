"""Tools of the Responses API besides functions: of free text, of a grammar, in a namespace."""

import re
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from penstock.server.api.responses.request import ResponsesRequest
from penstock.server.service import Service
from tests.server.ask_responses import FRANCE, TEXT, TOOL, WEATHER, ask, stream, told

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
