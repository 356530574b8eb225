"""LiteLLM, which aider and many gateways use, in both of the APIs that it speaks to a server."""

import json
import os
from typing import Any

import pytest

from tests.clients.asked import CITY, FUNCTION, LONG, SUM, TOTAL, WEATHER
from tests.clients.conftest import KEY, MODEL, RunningServer

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise it is downloaded on import
litellm = pytest.importorskip("litellm")

TOOL = {"type": "function", "function": FUNCTION}


@pytest.fixture(params=["openai", "anthropic"])
def asked(server: RunningServer, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {
        "model": f"{request.param}/{MODEL}",
        "api_base": server.openai if request.param == "openai" else server.url,
        "api_key": KEY,
        "temperature": 0,
        "max_tokens": 400,
        "num_retries": 0,
        "messages": [{"role": "user", "content": SUM}],
    }


def test_whole_and_in_pieces(asked: dict[str, Any]) -> None:
    whole = litellm.completion(**asked).choices[0].message.content
    assert TOTAL in whole
    pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)]
    assert "".join(pieces) == whole


def test_reasoning(asked: dict[str, Any]) -> None:
    effort: dict[str, Any] = {"reasoning_effort": "high"}
    if asked["model"].startswith("anthropic"):
        effort = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    message = litellm.completion(**asked, **effort, allowed_openai_params=list(effort)).choices[0].message
    assert message.reasoning_content
    assert TOTAL in message.content


def test_a_tool_is_called_and_answered(asked: dict[str, Any]) -> None:
    pytest.importorskip("mcp")  # LiteLLM imports it as soon as there are tools, whatever they are
    question = {"role": "user", "content": CITY}
    asked = {**asked, "tools": [TOOL], "messages": [question]}
    message = litellm.completion(**asked).choices[0].message
    (call,) = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    result = {"role": "tool", "tool_call_id": call.id, "content": WEATHER}
    asked["messages"] = [question, message.model_dump(exclude_none=True), result]
    assert "21" in litellm.completion(**asked).choices[0].message.content


def test_errors(asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**{**asked, "messages": [{"role": "user", "content": LONG}]})
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**asked, "api_key": "wrong"})
