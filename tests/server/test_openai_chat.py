"""POST /v1/chat/completions: what is asked, what comes back, whole and in pieces."""

import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.chat.messages import Role, Thinking
from penstock.server.api.openai_chat_request import ChatRequest
from penstock.server.service import Service
from tests.server.conftest import events

HELLO: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "temperature": 0,
    "max_tokens": 60,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
ASK_WEATHER = {
    **HELLO,
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [WEATHER],
}


def post(client: TestClient, body: dict[str, Any], **more: Any) -> Any:
    reply = client.post("/v1/chat/completions", json={**body, **more})
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(client: TestClient, body: dict[str, Any], **more: Any) -> list[Any]:
    reply = client.post("/v1/chat/completions", json={**body, "stream": True, **more})
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    return events(reply.text)


def refused(client: TestClient, **more: Any) -> Any:
    body = json.dumps({**HELLO, **more})  # escaped: also what is not text can be sent
    reply = client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def deltas(chunks: list[Any], index: int = 0) -> list[Any]:
    """Of one choice: its deltas, then its finish reason."""
    own = [c for chunk in chunks[:-1] for c in chunk["choices"] if c["index"] == index]
    assert [c["finish_reason"] is None for c in own] == [True] * (len(own) - 1) + [False]
    return [c["delta"] for c in own[:-1]] + [own[-1]["finish_reason"]]


def joined(parts: list[Any], field: str) -> str:
    return "".join(part.get(field, "") for part in parts[:-1])


def test_an_answer_with_its_usage_and_timings(client: TestClient) -> None:
    answer = post(client, HELLO)
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello! How can I help you?"}
    assert choice["finish_reason"] == "stop"
    usage, spent = answer["usage"], answer["timings"]
    assert usage["prompt_tokens"] == 5
    assert usage["total_tokens"] == 5 + usage["completion_tokens"] == 5 + spent["predicted_n"]
    assert spent["prompt_n"] + spent["cache_n"] == 5


def test_a_stream_tells_the_same_as_the_whole(client: TestClient) -> None:
    asked = {**HELLO, "thinking": {"type": "enabled"}}
    whole = post(client, asked)
    message = whole["choices"][0]["message"]
    chunks = stream(client, asked, stream_options={"include_usage": True})
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"] == []
    for field in ("completion_tokens", "completion_tokens_details"):
        assert chunks[-2]["usage"][field] == whole["usage"][field]
    assert ["timings" in chunk for chunk in chunks[-3:-1]] == [False, True]  # once, beside the usage
    role, *parts = deltas(chunks)
    assert role == {"role": "assistant"}
    assert joined(parts, "reasoning_content") == message["reasoning_content"] != ""
    assert joined(parts, "content") == message["content"] != ""
    kinds = [next(iter(part)) for part in parts[:-1]]
    assert kinds == sorted(kinds, reverse=True)  # all reasoning before all of the answer
    assert parts[-1] == "stop"


def test_without_being_asked_a_stream_has_no_usage(client: TestClient) -> None:
    assert all("usage" not in chunk for chunk in stream(client, HELLO)[:-1])


def test_reasoning_is_counted(client: TestClient) -> None:
    usage = post(client, HELLO, model="deepseek-reasoner")["usage"]
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning < usage["completion_tokens"]


def test_a_tool_is_called(client: TestClient) -> None:
    (choice,) = post(client, ASK_WEATHER)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_call_is_streamed_header_first(client: TestClient, choice: object) -> None:
    _, *parts = deltas(stream(client, ASK_WEATHER, tool_choice=choice))
    pieces = [piece for part in parts[:-1] for piece in part["tool_calls"]]
    assert pieces[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert pieces[0]["id"].startswith("call_")
    assert all(set(piece) == {"index", "function"} for piece in pieces[1:])
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"city": "Paris"}'
    assert parts[-1] == "tool_calls"


def test_a_call_that_is_required_is_made(client: TestClient) -> None:
    (choice,) = post(client, {**ASK_WEATHER, **HELLO}, tool_choice="required", thinking=True)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert "reasoning_content" not in choice["message"]


def test_no_tool_is_called_when_none_may_be(client: TestClient) -> None:
    """And the prompt stays the same, so that a session that has read it goes on."""
    none, auto = (post(client, {**ASK_WEATHER, "tool_choice": choice}) for choice in ("none", "auto"))
    assert [
        choice["message"].get("tool_calls") is None for choice in (*none["choices"], *auto["choices"])
    ] == [
        True,
        False,
    ]
    assert none["usage"]["prompt_tokens"] == auto["usage"]["prompt_tokens"]


def test_a_stop_string_ends_the_answer_and_is_not_shown(client: TestClient) -> None:
    asked = {**HELLO, "stop": ["can I", "never"]}
    (choice,) = post(client, asked)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello! How ", "stop")
    _, *parts = deltas(stream(client, asked))
    assert joined(parts, "content") == "Hello! How "


def test_a_stop_string_means_nothing_in_reasoning(client: TestClient) -> None:
    usual = post(client, HELLO, think=True)["choices"][0]["message"]
    assert "user" in usual["reasoning_content"]
    assert "user" not in usual["content"]
    stopped = post(client, HELLO, think=True, stop="user")["choices"][0]["message"]
    assert stopped == usual


def test_a_limit_cuts_the_answer(client: TestClient) -> None:
    answer = post(client, HELLO, max_tokens=None, max_completion_tokens=3)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


def test_several_choices_are_those_of_their_seeds(client: TestClient) -> None:
    asked = {**HELLO, "temperature": 1.5, "max_tokens": 8}
    answer = post(client, asked, n=3, seed=5)
    texts = [choice["message"]["content"] for choice in answer["choices"]]
    alone = [post(client, asked, seed=5 + n)["choices"][0]["message"]["content"] for n in range(3)]
    assert texts == alone
    assert answer["usage"]["prompt_tokens"] == 5
    chunks = stream(client, asked, n=3, seed=5)
    assert [joined(deltas(chunks, n), "content") for n in range(3)] == texts


def test_logprobs_of_reasoning_and_answer(client: TestClient) -> None:
    asked = {**HELLO, "think": True, "logprobs": True, "top_logprobs": 2}
    (choice,) = post(client, asked)["choices"]
    for field in ("content", "reasoning_content"):
        found = choice["logprobs"][field]
        assert "".join(entry["token"] for entry in found) == choice["message"][field]
        for entry in found:
            assert bytes(entry["bytes"]).decode() == entry["token"]
            assert entry["top_logprobs"][0]["logprob"] == entry["logprob"] <= 0  # greedy: the likeliest
            assert len(entry["top_logprobs"]) == 2
    chunks = stream(client, asked)
    streamed = [e for c in chunks[:-1] for e in c["choices"][0]["logprobs"].get("content", [])]
    assert [entry["token"] for entry in streamed] == [e["token"] for e in choice["logprobs"]["content"]]


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


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_beyond_the_context_is_refused_before_any_answer(client: TestClient, streamed: bool) -> None:
    error = refused(client, messages=[{"role": "user", "content": "word " * 3000}], stream=streamed)
    assert error["code"] == "context_length_exceeded"


def test_extremes_are_answered(client: TestClient) -> None:
    wild = {"top_k": 1 << 70, "temperature": 1e-30, "seed": -(1 << 70), "logit_bias": {"5": -100}, "user": {}}
    assert post(client, HELLO, **wild, max_tokens=2)["choices"]
    assert post(client, HELLO, top_k=-1, stop=None, n=None, tools=None)["choices"]


# ── custom tools ──────────────────────────────────────────────────────────────────────────────────────────

SHELL = {
    "type": "custom",
    "custom": {
        "name": "shell",
        "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "ls( -[al]{1,2})?"}},
    },
}


@pytest.mark.parametrize(
    "choice",
    [
        "required",
        {"type": "custom", "custom": {"name": "shell"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "shell"}}]},
        },
    ],
)
def test_a_custom_tool_is_called_with_text(client: TestClient, choice: Any) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [SHELL],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "seed": 1,
    }
    message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert (call["type"], call["custom"]["name"]) == ("custom", "shell")
    assert re.fullmatch("ls( -[al]{1,2})?", call["custom"]["input"])

    *chunks, done = events(client.post("/v1/chat/completions", json={**body, "stream": True}).text)
    assert done == "[DONE]"
    deltas = [d for chunk in chunks for d in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert (deltas[0]["type"], deltas[0]["custom"]["name"]) == ("custom", "shell")
    assert "".join(delta["custom"]["input"] for delta in deltas) == call["custom"]["input"]

    history = [*body["messages"], message, {"role": "tool", "tool_call_id": call["id"], "content": "x"}]
    again = client.post("/v1/chat/completions", json={**body, "messages": history, "tool_choice": "none"})
    assert again.status_code == 200


def test_the_same_weights_have_the_same_fingerprint(client: TestClient, service: Service) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    whole = client.post("/v1/chat/completions", json=body).json()
    *chunks, _ = events(client.post("/v1/chat/completions", json={**body, "stream": True}).text)
    expected = f"fp_{service.engine.fingerprint[:12]}"
    assert {answer["system_fingerprint"] for answer in [whole, *chunks]} == {expected}
