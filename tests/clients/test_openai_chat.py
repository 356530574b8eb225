"""OpenAI's own library: chat completions, completions, models, errors."""

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.clients.asked import CITY, FUNCTION, LONG, SUM, TOTAL, WEATHER
from tests.clients.conftest import KEY, MODEL, RunningServer

openai = pytest.importorskip("openai")

TOOL = {"type": "function", "function": FUNCTION}
ASKED = [{"role": "user", "content": SUM}]
ASKED_WEATHER = [{"role": "user", "content": CITY}]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Any:
    return openai.OpenAI(base_url=server.openai, api_key=KEY, max_retries=0, timeout=60)


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0)
    (choice,) = answer.choices
    assert TOTAL in choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.model == MODEL
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streaming_says_the_same(client: Any) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=ASKED, temperature=0)
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=ASKED, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    said = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert said == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason] == ["stop"]


@pytest.mark.parametrize("asked", [{"model": "deepseek-reasoner"}, {"reasoning_effort": "high"}])
def test_reasoning_comes_apart(client: Any, asked: dict[str, str]) -> None:
    asked = {"model": MODEL, **asked}
    message = client.chat.completions.create(messages=ASKED, temperature=0, **asked).choices[0].message
    assert message.reasoning_content
    assert TOTAL in message.content
    chunks = list(client.chat.completions.create(messages=ASKED, temperature=0, stream=True, **asked))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (
        "".join(getattr(delta, "reasoning_content", "") or "" for delta in deltas)
        == message.reasoning_content
    )
    assert "".join(delta.content or "" for delta in deltas) == message.content


def test_a_tool_is_called_and_answered(client: Any) -> None:
    asked = {"model": MODEL, "tools": [TOOL], "temperature": 0}
    first = client.chat.completions.create(messages=ASKED_WEATHER, **asked).choices[0]
    (call,) = first.message.tool_calls
    assert (first.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER}
    history = [*ASKED_WEATHER, first.message.model_dump(exclude_none=True), result]
    second = client.chat.completions.create(messages=history, **asked)
    assert "21" in second.choices[0].message.content
    assert second.usage.prompt_tokens_details.cached_tokens > 0


def test_a_streamed_call(client: Any) -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=ASKED_WEATHER, tools=[TOOL], temperature=0
    ) as stream:
        kinds = [event.type for event in stream]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.delta" in kinds
    assert "content.delta" not in kinds  # nothing of the call leaks as text
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})


class Sum(BaseModel):
    question: Literal["17 + 25"]
    total: int
    right: bool


def test_an_answer_has_the_form_that_was_asked_for(client: Any) -> None:
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASKED, response_format=Sum, temperature=0, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, Sum)


def test_a_client_that_goes_away_ends_its_request(client: Any, server: RunningServer) -> None:
    with server.left_alone(8_000):
        stream = client.completions.create(
            model=MODEL, prompt="One day", max_tokens=8_000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        assert server.busy()
        stream.close()


def test_a_client_that_does_not_wait_ends_its_request(client: Any, server: RunningServer) -> None:
    with server.left_alone(8_000), pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.5).completions.create(
            model=MODEL, prompt="One day", max_tokens=8_000, extra_body={"ignore_eos": True}
        )


def test_completions(client: Any) -> None:
    asked = {"model": MODEL, "prompt": "One day", "max_tokens": 5, "temperature": 0}
    answer = client.completions.create(**asked, echo=True, logprobs=1)
    assert answer.choices[0].text.startswith("One day")
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].logprobs.token_logprobs) == len(answer.choices[0].logprobs.tokens)
    pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert "One day" + "".join(pieces) == answer.choices[0].text


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "penstock"


def test_errors_are_of_the_class_that_programs_catch(client: Any) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as refused:
        create(model=MODEL, messages=ASKED, temperature=-1)
    assert (refused.value.param, refused.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.BadRequestError) as refused:
        create(model=MODEL, messages=[{"role": "user", "content": LONG}])
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        create(model=MODEL, messages=[{"role": "user", "content": LONG}], stream=True)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
