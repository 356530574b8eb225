"""What the Messages API understands of a request, and what it refuses by name."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.server.api.anthropic_request import CountRequest, MessagesRequest
from tests.server.ask_anthropic import FRANCE, TOOL, request

ORPHAN = {"type": "tool_result", "tool_use_id": "toolu_sent", "content": "x"}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": TOOL["input_schema"]}


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


def test_sampling_fields_are_passed_on() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
    sampling = MessagesRequest.model_validate(request(FRANCE) | fields).sampling()
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 5)
