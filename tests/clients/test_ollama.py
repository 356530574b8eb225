"""Ollama's own library for Python."""

from typing import Any

import pytest

from tests.clients.conftest import KEY, MODEL, RunningServer

ollama: Any = pytest.importorskip("ollama")

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY = {"temperature": 0}
ANSWER = "Hello! How can I help you?"


@pytest.fixture
def client(server: RunningServer) -> Any:
    return ollama.Client(host=server.url, headers={"Authorization": f"Bearer {KEY}"})


def get_weather(city: str) -> str:
    """Weather of a city

    Args:
      city: its name
    """
    return f"sunny in {city}"


def test_talk(client: Any) -> None:
    whole = client.chat(MODEL, HELLO, options=GREEDY)
    assert (whole.message.content, whole.done, whole.done_reason) == (ANSWER, True, "stop")
    parts = list(client.chat(MODEL, HELLO, stream=True, options=GREEDY))
    assert "".join(part.message.content for part in parts) == ANSWER
    assert parts[-1].eval_duration > 0
    assert client.generate(MODEL, "Hello", options=GREEDY).response == ANSWER
    assert client.chat(MODEL, HELLO, think=True, options=GREEDY).message.thinking


def test_calls(client: Any) -> None:
    """A function of the program becomes a tool."""
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = client.chat(MODEL, asked, tools=[get_weather], options=GREEDY)
    (call,) = first.message.tool_calls
    assert call.function.name == "get_weather"
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather(**call.function.arguments)}
    assert client.chat(MODEL, [*asked, first.message, result], tools=[get_weather], options=GREEDY).done


def test_looking_around(client: Any) -> None:
    (model,) = client.list().models
    assert model.model == MODEL
    assert client.show(MODEL).modelinfo["deepseek4.context_length"] == 8192
    (running,) = client.ps().models
    assert running.context_length == 8192
    assert client.pull(MODEL).status == "success"
    with pytest.raises(ollama.ResponseError, match="model 'llama3' not found"):
        client.show("llama3")
    with pytest.raises(ollama.ResponseError, match="does not support embeddings"):
        client.embed(MODEL, "x")
