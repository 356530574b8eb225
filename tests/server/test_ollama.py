"""Ollama's API."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock.server.api.ollama.request import ChatBody
from penstock.server.service import Service

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather of a city", "parameters": PARAMETERS},
}
PARIS = {"role": "user", "content": "What is the weather in Paris?"}


def lines(client: TestClient, path: str, **body: Any) -> list[dict[str, Any]]:
    reply = client.post(path, json={"model": "m", "options": GREEDY, **body})
    assert reply.headers["content-type"].startswith("application/x-ndjson"), reply.text
    return [json.loads(line) for line in reply.text.splitlines()]


def ask(client: TestClient, path: str = "/api/chat", **body: Any) -> Any:
    reply = client.post(path, json={"model": "m", "options": GREEDY, "stream": False, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_stream_tells_of_the_same_answer(client: TestClient) -> None:
    whole, parts = ask(client, messages=HELLO), lines(client, "/api/chat", messages=HELLO)
    assert whole["message"] == {"role": "assistant", "content": "Hello! How can I help you?"}
    assert "".join(part["message"]["content"] for part in parts) == whole["message"]["content"]
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (whole["done"], whole["done_reason"], whole["model"]) == (True, "stop", "m")
    assert whole.keys() == parts[-1].keys()
    assert ask(client, "/api/generate", prompt="Hello")["response"] == whole["message"]["content"]
    text = "".join(part["response"] for part in lines(client, "/api/generate", prompt="Hello"))
    assert text == whole["message"]["content"]


def test_text_without_any_format(client: TestClient) -> None:
    options = {**GREEDY, "num_predict": 4}
    raw = ask(client, "/api/generate", prompt="Hello", raw=True, options=options)
    body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0}
    assert raw["response"] == client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    filled = ask(client, "/api/generate", prompt="def f(x):", suffix="return y", options=options)
    body = {"prompt": "def f(x):", "suffix": "return y", "max_tokens": 4, "temperature": 0}
    assert filled["response"] == client.post("/v1/completions", json=body).json()["choices"][0]["text"]


def test_calls_and_their_results(client: TestClient) -> None:
    first = ask(client, messages=[PARIS], tools=[TOOL])["message"]
    (call,) = first["tool_calls"]
    assert call["function"] == {"index": 0, "name": "get_weather", "arguments": {"city": "Paris"}}
    result = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
    assert ask(client, messages=[PARIS, first, result], tools=[TOOL])["message"]["content"]
    parts = lines(client, "/api/chat", messages=[PARIS], tools=[TOOL])
    (streamed,) = [call for part in parts for call in part["message"].get("tool_calls", ())]
    assert streamed["function"] == call["function"]


def test_results_find_their_calls() -> None:
    def call(name: str, **more: Any) -> dict[str, Any]:
        return {**more, "function": {"name": name, "arguments": {}}}

    body = ChatBody.model_validate(
        {
            "model": "m",
            "messages": [
                {"role": "assistant", "tool_calls": [call("f"), call("g"), call("f", id="own")]},
                {"role": "tool", "content": "3", "tool_call_id": "own"},
                {"role": "tool", "content": "2", "tool_name": "g"},
                {"role": "tool", "content": "1"},
            ],
        }
    )
    first, *results = body.conversation().messages
    assert [result.tool_call_id for result in results] == [first.tool_calls[n].id for n in (2, 1, 0)]


@pytest.mark.parametrize(
    ("think", "expected"), [(None, "off"), (False, "off"), (True, "high"), ("low", "low")]
)
def test_thinking_is_asked_for(client: TestClient, think: Any, expected: str) -> None:
    body = {"model": "m", "messages": HELLO, "think": think}
    assert ChatBody.model_validate(body).conversation().thinking == expected
    if think is not None:
        assert ("thinking" in ask(client, messages=HELLO, think=think)["message"]) is bool(think)
        parts = lines(client, "/api/generate", prompt="Hello", think=think)
        assert any("thinking" in part for part in parts) is bool(think)


def test_json_of_a_form(client: TestClient) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    held = ask(client, messages=HELLO, format=schema, options={"temperature": 2})
    assert json.loads(held["message"]["content"])["n"] in (1, 2)
    assert (
        ask(client, "/api/generate", prompt="Hi", format="json", options={"num_predict": 5})["response"][0]
        == "{"
    )


def test_what_there_is(client: TestClient, service: Service) -> None:
    (model,) = client.get("/api/tags").json()["models"]
    assert (model["name"], model["size"]) == (service.settings.name, service.model_size.bytes)
    assert (model["details"]["family"], model["details"]["parameter_size"]) == ("deepseek4", "21.5M")
    (running,) = client.get("/api/ps").json()["models"]
    assert running["context_length"] == 2048
    for name in ({"model": "deepseek-v4"}, {"name": "deepseek-v4:latest"}):
        shown = client.post("/api/show", json=name).json()
        assert shown["model_info"]["deepseek4.context_length"] == 2048
        assert "tools" in shown["capabilities"]
    assert client.post("/api/pull", json={"model": "deepseek-v4"}).text == '{"status":"success"}\n'
    for path in ("/api/show", "/api/pull"):
        missing = client.post(path, json={"model": "llama3"})
        assert (missing.status_code, missing.json()["error"][:23]) == (404, "model 'llama3' not found"[:23])
    for path in ("/api/embed", "/api/embeddings"):
        refused = client.post(path, json={"model": "m", "input": "x"})
        assert (refused.status_code, refused.json()["error"][:38]) == (
            400,
            "this model does not support embeddings",
        )


def test_durations_are_nanoseconds(client: TestClient) -> None:
    *_, last = lines(client, "/api/chat", messages=HELLO)
    assert last["total_duration"] >= last["prompt_eval_duration"] + last["eval_duration"] - 1000
    assert 1e5 < last["total_duration"] < 1e12
    assert last["prompt_eval_count"] > 0
    assert last["eval_count"] > 3
    assert last["created_at"].endswith("Z")


def test_options(client: TestClient) -> None:
    *_, last = lines(client, "/api/chat", messages=HELLO, options={**GREEDY, "num_predict": 2})
    assert (last["eval_count"], last["done_reason"]) == (2, "length")
    options = {**GREEDY, "stop": ["How"], "num_ctx": 1 << 20, "num_gpu": 99, "mirostat": 0}
    parts = lines(client, "/api/chat", messages=HELLO, options=options)
    assert "".join(part["message"]["content"] for part in parts) == "Hello! "


def test_log_probabilities(client: TestClient) -> None:
    body = {
        "model": "m",
        "prompt": "Hello",
        "stream": False,
        "logprobs": True,
        "top_logprobs": 2,
        "options": GREEDY,
    }
    found = client.post("/api/generate", json=body).json()
    assert "".join(entry["token"] for entry in found["logprobs"]) == found["response"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in found["logprobs"])


def test_who_asks_for_nothing_has_the_model_loaded(client: TestClient) -> None:
    for path in ("/api/chat", "/api/generate"):
        reply = client.post(path, json={"model": "m"}).json()
        assert (reply["done"], reply["done_reason"]) == (True, "load")


def test_who_keeps_nothing_alive_has_it_unloaded(
    client: TestClient, service: Service, monkeypatch: Any
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(service.scheduler, "park", asked.append)
    reply = client.post("/api/generate", json={"model": "m", "keep_alive": 0}).json()
    assert (reply["done_reason"], asked) == ("unload", [True])


def test_the_version_is_one_that_clients_know(client: TestClient) -> None:
    assert int(client.get("/api/version").json()["version"].split(".")[1]) >= 6


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (
            "/api/chat",
            {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
            "images cannot be read",
        ),
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "images cannot be read"),
        ("/api/generate", {"prompt": "x", "raw": True, "images": ["aGk="]}, "images cannot be read"),
        ("/api/generate", {"prompt": "x", "context": [1, 2]}, "context"),
        ("/api/generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"),
        ("/api/generate", {"prompt": "word " * 3000}, "context"),
        ("/api/chat", {"messages": HELLO, "options": {"mirostat": 2}}, "options.mirostat"),
        ("/api/chat", {"messages": HELLO, "options": {"stop": ["x", 5]}}, "options.stop[1]"),
        ("/api/chat", {"messages": HELLO, "think": "hard"}, "think"),
        ("/api/chat", {"messages": HELLO, "format": {"type": "colour"}}, "format: Invalid type"),
        ("/api/chat", {"messages": HELLO, "keep_alive": "soon"}, "keep_alive"),
        ("/api/chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
        ("/api/chat", {"messages": HELLO, "model": ""}, "model"),
    ],
)
def test_what_is_wrong_is_named(client: TestClient, path: str, fields: dict[str, Any], named: str) -> None:
    for stream in (False, True):
        reply: Any = client.post(path, json={"model": "m", **fields, "stream": stream})
        assert reply.status_code == 400
        assert named in reply.json()["error"]
