"""Anthropic's own library."""

from typing import Any

import pytest

from tests.clients.asked import CITY, FUNCTION, LONG, PARAMETERS, SUM, TOTAL, WEATHER, long_question
from tests.clients.conftest import KEY, MODEL, RunningServer

anthropic = pytest.importorskip("anthropic")

TOOL = {"name": FUNCTION["name"], "description": FUNCTION["description"], "input_schema": PARAMETERS}
ASKED: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 400,
    "messages": [{"role": "user", "content": SUM}],
    "extra_body": {"temperature": 0},  # the library has no name for it any more
}
ASKED_WEATHER = {**ASKED, "messages": [{"role": "user", "content": CITY}], "tools": [TOOL]}
THINKING = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module", params=["api_key", "auth_token"])
def client(server: RunningServer, request: pytest.FixtureRequest) -> Any:
    """The key may come in either of two headers."""
    options = {"api_key": None, "auth_token": None, request.param: KEY}
    return anthropic.Anthropic(base_url=server.url, max_retries=0, timeout=60, **options)


def plain(block: Any) -> Any:
    """The fields that the API knows, without those that the library's streaming adds."""
    return block.model_dump(exclude_none=True, exclude={"parsed_output"})


def test_a_message(client: Any) -> None:
    message = client.messages.create(**ASKED)
    (block,) = message.content
    assert TOTAL in block.text
    assert (message.role, message.stop_reason) == ("assistant", "end_turn")
    assert message.usage.output_tokens > 0


def test_streaming_says_the_same(client: Any) -> None:
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert [plain(block) for block in final.content] == [plain(block) for block in whole.content]
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_thinking_is_a_block_of_its_own(client: Any) -> None:
    whole = client.messages.create(**ASKED, thinking=THINKING)
    thinking, text = whole.content
    assert (thinking.type, text.type) == ("thinking", "text")
    assert thinking.signature
    assert TOTAL in text.text
    with client.messages.stream(**ASKED, thinking=THINKING) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert kinds >= {"thinking", "signature", "text", "message_stop"}
    assert [plain(block) for block in final.content] == [plain(block) for block in whole.content]


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, THINKING])
def test_a_tool_is_used_and_answered(client: Any, thinking: dict[str, Any]) -> None:
    with client.messages.stream(**ASKED_WEATHER, thinking=thinking) as stream:
        first = stream.get_final_message()
    *_, use = first.content
    assert first.stop_reason == "tool_use"
    assert (use.type, use.name, use.input) == ("tool_use", "get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": WEATHER}
    history = [
        *ASKED_WEATHER["messages"],
        {"role": "assistant", "content": [plain(block) for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(**{**ASKED_WEATHER, "messages": history}, thinking=thinking)
    assert "21" in second.content[-1].text
    assert second.usage.cache_read_input_tokens > 0


def test_tokens_are_counted_as_they_are_used(client: Any) -> None:
    fields = {name: ASKED_WEATHER[name] for name in ("model", "messages", "tools")}
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(**ASKED_WEATHER).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_a_client_that_goes_away_ends_its_request(client: Any, server: RunningServer) -> None:
    asked = {**ASKED, "messages": [{"role": "user", "content": long_question()}]}
    with server.left_alone(6_000), client.messages.stream(**asked) as stream:
        next(iter(stream))
        assert server.busy()


def test_errors_are_of_the_class_that_programs_catch(client: Any, server: RunningServer) -> None:
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(**{**ASKED, "messages": [{"role": "user", "content": LONG}]})
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**{**ASKED, "extra_body": {"temperature": -1}})
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**ASKED)
