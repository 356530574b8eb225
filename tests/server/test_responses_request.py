"""What the Responses API understands of a request, and what it refuses by name."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.server.api.responses.request import ResponsesRequest
from tests.server.ask_responses import FRANCE, FUNCTION, TOOL


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
