"""What chat completions understand of a request, and what they refuse by name."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.chat.messages import Role, Thinking
from penstock.server.api.openai_chat_request import ChatRequest
from tests.server.ask_openai import HELLO, WEATHER, refused


def test_deepseek_own_fields_are_understood() -> None:
    lookup = {"type": "function", "function": {"name": "lookup"}}
    body = ChatRequest.model_validate(
        {
            "messages": [
                {"role": "developer", "content": "D", "tools": [lookup]},
                {"role": "latest_reminder", "content": "today"},
                {"role": "user", "content": "q", "task": "query"},
                {
                    "role": "assistant",
                    "reasoning": "hm",
                    "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {"city": "Köln"}}}],
                },
                {
                    "role": "tool",
                    "tool_call_id": "x",
                    "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}],
                },
                {"role": "assistant", "content": "So", "prefix": True},
            ],
            "chat_template_kwargs": {"thinking": True, "drop_thinking": False},
        }
    )
    conversation = body.conversation()
    developer, reminder, user, assistant, tool, last = conversation.messages
    assert developer.tools == ({"name": "lookup"},)
    assert (reminder.role, user.task, assistant.reasoning) == (Role.REMINDER, "query", "hm")
    assert assistant.tool_calls[0].arguments == '{"city": "Köln"}'
    assert (tool.content, last.content) == ("1\n\n2", "So")
    assert (conversation.thinking, conversation.drop_thinking) == (Thinking.HIGH, False)
    assert body.rendering() == {"forced": False, "continues": True}


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user", "content": "q", "prefix": True}, "messages[0].prefix"),
        ({"role": "user", "content": "q", "tools": [WEATHER]}, "messages[0].tools"),
        ({"role": "assistant", "content": "q", "task": "query"}, "messages[0].task"),
    ],
)
def test_deepseek_own_fields_out_of_place(client: TestClient, message: dict[str, Any], field: str) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": [message]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("choice", "chosen", "force"),
    [
        (None, None, False),
        ("none", (), False),
        ("required", None, True),
        ({"type": "function", "function": {"name": "f"}}, ("f",), True),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]},
            },
            ("g",),
            False,
        ),
    ],
)
def test_a_choice_leaves_what_is_offered(choice: Any, chosen: tuple[str, ...] | None, force: bool) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
    body = ChatRequest.model_validate(
        {"messages": [{"role": "user", "content": "q"}], "tools": tools, "tool_choice": choice}
    )
    conversation = body.conversation()
    assert [tool["name"] for tool in conversation.tools] == ["f", "g"]
    assert (conversation.choice, body.rendering()["forced"]) == (chosen, force)


def test_a_conversation_is_understood() -> None:
    body = ChatRequest.model_validate(
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {
                    "role": "assistant",
                    "content": None,
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {
                            "id": "x",
                            "type": "function",
                            "function": {"name": "f", "arguments": "{}"},
                            "raw": "no",
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "x", "content": "1"},
            ],
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"a": 1}}},
            "tools": [WEATHER],
        }
    )
    conversation = body.conversation()
    system, user, assistant, tool = conversation.messages
    assert (system.role, user.content, tool.tool_call_id) == (Role.DEVELOPER, "a\nb", "x")
    assert (assistant.content, assistant.reasoning, assistant.sampled) == ("", "hm", None)
    assert [(call.id, call.name, call.arguments, call.raw) for call in assistant.tool_calls] == [
        ("x", "f", "{}", None)
    ]
    assert conversation.response_schema == {"a": 1}
    assert conversation.tools == (WEATHER["function"],)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Thinking.OFF),
        ({"model": "deepseek-chat"}, Thinking.OFF),
        ({"model": "deepseek-reasoner"}, Thinking.HIGH),
        ({"model": "deepseek-reasoner", "thinking": False}, Thinking.OFF),
        ({"model": "deepseek-chat", "thinking": {"type": "enabled"}}, Thinking.HIGH),
        ({"think": True, "reasoning_effort": "max"}, Thinking.MAX),
        ({"reasoning_effort": "low"}, Thinking.LOW),
        ({"reasoning_effort": "xhigh"}, Thinking.HIGH),
        ({"thinking": True, "reasoning_effort": "none"}, Thinking.OFF),
        ({"think": False, "reasoning_effort": "high"}, Thinking.OFF),
    ],
)
def test_who_thinks(fields: dict[str, Any], expected: Thinking) -> None:
    assert ChatRequest.model_validate({**HELLO, **fields}).conversation().thinking is expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages[0].tool_calls",
        ),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": ["x"] * 17}, "stop[16]"),
        ({"stop": ["x", "y", 5]}, "stop[2]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [{"type": "custom", "custom": {"name": 5}}]}, "tools[0].custom.name"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"thinking": {"type": "perhaps"}}, "thinking"),
        ({"reasoning_effort": "heroic"}, "reasoning_effort"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
    ],
)
def test_nonsense_is_refused_by_name(client: TestClient, fields: dict[str, Any], param: str) -> None:
    error = refused(client, **fields)
    assert error["param"].startswith(param)
    assert error["type"] == "invalid_request_error"
    assert (
        refused(client, stream=True, **fields)["param"] == error["param"] if "stream" not in fields else True
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"logit_bias": {"999999": 1}},
        {"messages": [{"role": "user", "content": "\ud800"}]},
        {"temperature": 1e7},
        {"temperature": float("nan")},
        {"tools": [{"type": "function", "function": {"name": "\ud800"}}]},
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_what_the_engine_refuses_is_the_clients_mistake(
    client: TestClient, fields: dict[str, Any], streamed: bool
) -> None:
    assert refused(client, stream=streamed, **fields)["message"]
