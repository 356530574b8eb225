"""POST /v1/chat/completions: what comes back, whole and in pieces."""

import re
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.server.service import Service
from tests.server.ask_openai import ASK_WEATHER, HELLO, deltas, joined, post, refused, stream
from tests.server.conftest import events


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


@pytest.mark.parametrize("streamed", [False, True])
def test_a_prompt_beyond_the_context_is_refused_before_any_answer(client: TestClient, streamed: bool) -> None:
    error = refused(client, messages=[{"role": "user", "content": "word " * 3000}], stream=streamed)
    assert error["code"] == "context_length_exceeded"


def test_extremes_are_answered(client: TestClient) -> None:
    wild = {"top_k": 1 << 70, "temperature": 1e-30, "seed": -(1 << 70), "logit_bias": {"5": -100}, "user": {}}
    assert post(client, HELLO, **wild, max_tokens=2)["choices"]
    assert post(client, HELLO, top_k=-1, stop=None, n=None, tools=None)["choices"]


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
