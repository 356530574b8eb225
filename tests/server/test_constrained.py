"""Answers that are held to a form, in all three APIs: the pocket model at a temperature at which it babbles."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from starlette.testclient import TestClient

from penstock.server.api.anthropic_request import MessagesRequest
from penstock.server.api.openai_chat_request import ChatRequest
from penstock.server.api.responses.request import ResponsesRequest
from tests.server.conftest import events


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with a schema is said before a stream begins, however long a busy machine takes to see it."""
    monkeypatch.setattr("penstock.server.http.streams.ACCEPTANCE", 60.0)


SEEDS = range(6)
CHOICES = {"type": "string", "enum": ["red", "green"]}
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": CHOICES,
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 40}, "maxItems": 3},
        "word": {"type": "string", "maxLength": 12},
        "more": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
    },
    "required": ["colour", "sizes", "word", "more"],
    "additionalProperties": False,
    "$defs": {
        "point": {
            "type": "object",
            "properties": {"x": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        }
    },
}
PAINT = {
    "type": "object",
    "properties": {"colour": CHOICES, "deep": {"type": "boolean"}},
    "required": ["colour"],
}
TOOLS = {"paint": PAINT, "stop": {"type": "object", "properties": {}}}
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": TOOLS[name]}} for name in TOOLS]
WILD: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "temperature": 2,
    "max_tokens": 400,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "job", "strict": True, "schema": SCHEMA}}


def chat(client: TestClient, **body: Any) -> Any:
    reply: Any = client.post("/v1/chat/completions", json={**WILD, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def check_call(name: str, arguments: Any) -> None:
    jsonschema.validate(arguments, TOOLS[name])
    assert set(arguments) <= set(TOOLS[name]["properties"])


@pytest.mark.parametrize("seed", SEEDS)
def test_json_of_a_schema(client: TestClient, seed: int) -> None:
    choice = chat(client, seed=seed, response_format=FORMAT)
    assert choice["finish_reason"] == "stop"
    answer = json.loads(choice["message"]["content"])
    jsonschema.validate(answer, SCHEMA)
    assert list(answer) == list(SCHEMA["properties"])  # type: ignore[call-overload]


def test_json_in_pieces(client: TestClient) -> None:
    body = {**WILD, "seed": 1, "response_format": FORMAT, "stream": True}
    *chunks, done = events(client.post("/v1/chat/completions", json=body).text)
    assert done == "[DONE]"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_reasoning_comes_first(client: TestClient) -> None:
    ended = 0
    for seed in SEEDS:
        choice = chat(client, seed=seed, thinking=True, temperature=1.2, response_format=FORMAT)
        if choice["finish_reason"] == "stop":
            ended += 1
            assert choice["message"]["reasoning_content"]
            jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)
    assert ended


def test_without_strictness_any_object_will_do(client: TestClient) -> None:
    loose = {"type": "json_schema", "json_schema": {"name": "job", "strict": False, "schema": SCHEMA}}
    for form in ({"type": "json_object"}, loose):
        choice = chat(client, seed=3, temperature=0, response_format=form)
        text = choice["message"]["content"]
        assert text.startswith("{")
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(text), dict)


def test_a_limit_cuts_json_off(client: TestClient) -> None:
    choice = chat(client, seed=1, max_tokens=3, response_format=FORMAT)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_that_is_demanded_is_made(client: TestClient, seed: int) -> None:
    choice = chat(client, seed=seed, tools=FUNCTIONS, tool_choice="required", parallel_tool_calls=False)
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None
    check_call(call["function"]["name"], json.loads(call["function"]["arguments"]))


@pytest.mark.parametrize("name", TOOLS)
def test_the_tool_that_is_named_is_called(client: TestClient, name: str) -> None:
    for seed in SEEDS:
        named = {"type": "function", "function": {"name": name}}
        choice = chat(client, seed=seed, tools=FUNCTIONS, tool_choice=named, parallel_tool_calls=False)
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == [name]


def test_a_call_is_not_changed_that_was_right_before(client: TestClient) -> None:
    """What the model does by itself on the question that it was taught."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    body = {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "temperature": 0,
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": city}}],
    }
    (call,) = chat(client, **body)["message"]["tool_calls"]
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}


def test_tools_on_offer_never_leak(client: TestClient) -> None:
    choices = [chat(client, seed=seed, tools=FUNCTIONS) for seed in SEEDS]
    ended = [choice for choice in choices if choice["finish_reason"] != "length"]
    assert ended
    for choice in ended:
        assert "DSML" not in (choice["message"]["content"] or "")
        for call in choice["message"].get("tool_calls", []):
            check_call(call["function"]["name"], json.loads(call["function"]["arguments"]))


def test_log_probabilities_are_the_models_own(client: TestClient) -> None:
    choice = chat(client, seed=1, response_format=FORMAT, logprobs=True, top_logprobs=2, temperature=0)
    first = choice["logprobs"]["content"][0]
    assert first["token"].startswith("{")
    assert first["top_logprobs"][0]["logprob"] >= first["logprob"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema: missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "job"}}},
            "response_format.json_schema.schema: missing",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "colour"}}}},
            "response_format.json_schema.schema: Invalid type: colour",
        ),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {
                            "name": "f",
                            "parameters": {"type": "object", "properties": {"x": {"type": "colour"}}},
                        },
                    }
                ],
                "tool_choice": "required",
            },
            "tools: the parameters of 'f'",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(client: TestClient, more: Any, named: str) -> None:
    for stream in (False, True):
        reply: Any = client.post("/v1/chat/completions", json={**WILD, **more, "stream": stream})
        assert reply.status_code == 400
        assert named in reply.json()["error"]["message"]


# ── Anthropic ─────────────────────────────────────────────────────────────────────────────────────────────


def message(client: TestClient, **body: Any) -> Any:
    reply: Any = client.post("/v1/messages", json={**WILD, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_anthropic_json(client: TestClient) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    for _ in range(3):
        answer = message(client, output_config=form)
        jsonschema.validate(json.loads(answer["content"][0]["text"]), SCHEMA)
    begun = [*WILD["messages"], {"role": "assistant", "content": '{"colour":'}]
    text = message(client, output_config=form, messages=begun)["content"][0]["text"]
    jsonschema.validate(json.loads('{"colour":' + text), SCHEMA)


def test_anthropic_calls(client: TestClient) -> None:
    tools = [{"name": name, "input_schema": schema} for name, schema in TOOLS.items()]
    for choice in ({"type": "any"}, {"type": "tool", "name": "paint"}):
        one = {**choice, "disable_parallel_tool_use": True}
        answer = message(client, tools=tools, tool_choice=one)
        (block,) = answer["content"]
        assert (block["type"], answer["stop_reason"]) == ("tool_use", "tool_use")
        assert block["name"] == choice.get("name", block["name"])
        check_call(block["name"], block["input"])


def test_anthropic_names_its_field(client: TestClient) -> None:
    form = {"format": {"type": "json_schema", "schema": {"type": "colour"}}}
    reply: Any = client.post("/v1/messages", json={**WILD, "output_config": form})
    assert reply.status_code == 400
    assert "output_config.format.schema" in reply.json()["error"]["message"]


# ── Responses ─────────────────────────────────────────────────────────────────────────────────────────────


def respond(client: TestClient, **body: Any) -> Any:
    reply: Any = client.post("/v1/responses", json={"input": "Hello", "temperature": 2, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()["output"]


def test_responses_json(client: TestClient) -> None:
    form = {"format": {"type": "json_schema", "name": "job", "schema": SCHEMA, "strict": True}}
    for _ in range(3):
        (item,) = respond(client, text=form)
        jsonschema.validate(json.loads(item["content"][0]["text"]), SCHEMA)


def test_responses_calls(client: TestClient) -> None:
    tools = [{"type": "function", "name": name, "parameters": schema} for name, schema in TOOLS.items()]
    for choice in ("required", {"type": "function", "name": "paint"}):
        (item,) = respond(client, tools=tools, tool_choice=choice, parallel_tool_calls=False)
        assert item["type"] == "function_call"
        assert isinstance(choice, str) or item["name"] == "paint"
        check_call(item["name"], json.loads(item["arguments"]))


def test_responses_names_its_field(client: TestClient) -> None:
    form = {"format": {"type": "json_schema", "name": "job", "schema": {"type": "colour"}}}
    reply: Any = client.post("/v1/responses", json={"input": "Hello", "text": form})
    assert reply.status_code == 400
    assert "text.format.schema" in reply.json()["error"]["message"]


@pytest.mark.parametrize("strict", [None, True, False])
def test_strictness_is_what_holds(strict: bool | None) -> None:
    form = {"type": "json_schema", "name": "job", "schema": SCHEMA, "strict": strict}
    for made in (
        ResponsesRequest.model_validate({"input": "Hello", "text": {"format": form}}).chat(),
        ChatRequest.model_validate(
            {**WILD, "response_format": {"type": "json_schema", "json_schema": form}}
        ).conversation(),
    ):
        assert made.response_schema == SCHEMA
        assert made.json_only is (strict is False)


def test_one_call_at_a_time_is_asked_for_in_three_ways() -> None:
    for asked in (None, True, False):
        chat = ChatRequest.model_validate({**WILD, "parallel_tool_calls": asked})
        responses = ResponsesRequest.model_validate({"input": "Hello", "parallel_tool_calls": asked})
        choice = {"type": "auto", "disable_parallel_tool_use": None if asked is None else not asked}
        messages = MessagesRequest.model_validate({**WILD, "tool_choice": choice})
        for made in (chat.conversation(), responses.chat(), messages.conversation()):
            assert made.parallel_calls is (asked is not False)
