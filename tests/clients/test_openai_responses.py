"""OpenAI's own library: the Responses API."""

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.clients.asked import CITY, FUNCTION, LONG, SUM, TOTAL, WEATHER, long_question
from tests.clients.conftest import KEY, MODEL, RunningServer

openai = pytest.importorskip("openai")

TOOL = {"type": "function", "strict": False, **FUNCTION}


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Any:
    return openai.OpenAI(base_url=server.openai, api_key=KEY, max_retries=0, timeout=60)


def test_a_response(client: Any) -> None:
    response = client.responses.create(model=MODEL, input=SUM, temperature=0)
    assert TOTAL in response.output_text
    assert response.status == "completed"
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_its_events_tell_the_same(client: Any) -> None:
    whole = client.responses.create(model=MODEL, input=SUM, temperature=0, reasoning={"effort": "high"})
    reasoning, message = whole.output
    assert (reasoning.type, message.type) == ("reasoning", "message")
    with client.responses.stream(
        model=MODEL, input=SUM, temperature=0, reasoning={"effort": "high"}
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    for kind, text in (
        ("response.output_text.delta", whole.output_text),
        ("response.reasoning_summary_text.delta", reasoning.summary[0].text),
    ):
        assert "".join(event.delta for event in events if event.type == kind) == text
    assert final.output_text == whole.output_text


def test_a_function_is_called_and_answered(client: Any) -> None:
    asked = {"model": MODEL, "tools": [TOOL], "temperature": 0}
    with client.responses.stream(input=CITY, **asked) as stream:
        done = [event for event in stream if event.type == "response.function_call_arguments.done"]
        first = stream.get_final_response()
    (call,) = first.output
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "get_weather",
        {"city": "Paris"},
    )
    assert [event.arguments for event in done] == [call.arguments]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER}
    history = [{"role": "user", "content": CITY}, call.model_dump(exclude_none=True), result]
    second = client.responses.create(input=history, **asked)
    assert "21" in second.output_text
    assert second.usage.input_tokens_details.cached_tokens > 0


class Sum(BaseModel):
    question: Literal["17 + 25"]
    total: int
    right: bool


def test_an_answer_has_the_form_that_was_asked_for(client: Any) -> None:
    response = client.responses.parse(
        model=MODEL, input=SUM, text_format=Sum, temperature=0, max_output_tokens=200
    )
    assert isinstance(response.output_parsed, Sum)


def test_a_client_that_goes_away_ends_its_request(client: Any, server: RunningServer) -> None:
    with server.left_alone(6_000):
        stream = client.responses.create(model=MODEL, input=long_question(), stream=True)
        next(iter(stream))
        assert server.busy()
        stream.close()


def test_errors(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=LONG)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input=SUM, previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
