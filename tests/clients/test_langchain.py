"""LangChain's models for OpenAI's APIs."""

from typing import Any

import pytest
from pydantic import BaseModel

from tests.clients.asked import CITY, FUNCTION, PARAMETERS, SUM, TOTAL, WEATHER
from tests.clients.conftest import KEY, MODEL, RunningServer

langchain_openai = pytest.importorskip("langchain_openai")
messages = pytest.importorskip("langchain_core.messages")

TOOL = {"title": "get_weather", "description": FUNCTION["description"], **PARAMETERS}


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def model(server: RunningServer, request: pytest.FixtureRequest) -> Any:
    return langchain_openai.ChatOpenAI(
        base_url=server.openai,
        api_key=KEY,
        model=MODEL,
        temperature=0,
        max_retries=0,
        timeout=60,
        use_responses_api=request.param,
    )


def test_invoke_and_stream(model: Any) -> None:
    whole = model.invoke(SUM)
    assert TOTAL in whole.text
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.text for chunk in model.stream(SUM)) == whole.text


def test_a_tool_is_called_and_answered(model: Any) -> None:
    armed = model.bind_tools([TOOL])
    question = messages.HumanMessage(CITY)
    called = armed.invoke([question])
    (call,) = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Paris"})
    pieces = list(armed.stream([question]))
    whole = sum(pieces[1:], start=pieces[0])
    assert [(made["name"], made["args"]) for made in whole.tool_calls] == [("get_weather", {"city": "Paris"})]
    result = messages.ToolMessage(WEATHER, tool_call_id=call["id"])
    assert "21" in armed.invoke([question, called, result]).text


class Sum(BaseModel):
    """A sum."""

    total: int
    right: bool


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_has_the_form_that_was_asked_for(model: Any, method: str) -> None:
    assert isinstance(model.with_structured_output(Sum, method=method).invoke(SUM), Sum)
