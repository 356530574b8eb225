"""What the requests of several APIs have in common."""

from typing import Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, JsonValue

from penstock.chat.messages import Message, Role, Thinking
from penstock.server.errors import ApiError
from penstock.server.openai_chat_request import EFFORTS

JsonObject = dict[str, JsonValue]


class Body(BaseModel):
    """Fields have exactly the type that they should; fields that nobody knows are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


def text_as(kind: str) -> BeforeValidator:
    """Makes a plain string the list of one part that it is short for."""
    return BeforeValidator(lambda value: [{"type": kind, "text": value}] if isinstance(value, str) else value)


def thinking_for(effort: str | None, field: str, default: Thinking) -> Thinking:
    """How hard to think for an effort that a client names."""
    if effort is None:
        return default
    if effort not in EFFORTS:
        raise refusal(field, f"expected one of {', '.join(EFFORTS)}, found {effort!r}")
    return EFFORTS[effort]


class Offer(NamedTuple):
    """The tools that the model may call, and whether it has to."""

    tools: tuple[dict[str, Any], ...]
    force: bool


def offer(tools: list[dict[str, Any]], choice: str, name: str | None = None) -> Offer:
    """choice: "auto", "none" or "required"; with a `name`, that one function is required."""
    if choice == "none":
        return Offer((), False)
    if name is not None:
        tools = [tool for tool in tools if tool["name"] == name]
    if choice == "required" and not tools:
        missing = "there are no tools to call" if name is None else f"there is no tool {name!r}"
        raise refusal("tool_choice", missing)
    return Offer(tuple(tools), choice == "required")


def check_results(messages: list[Message], field: str) -> None:
    """Every result must answer a call that was made before it."""
    calls: set[str | None] = set()
    for message in messages:
        calls |= {call.id for call in message.tool_calls}
        if message.role is Role.TOOL and message.tool_call_id not in calls:
            raise refusal(field, f"the result for {message.tool_call_id!r} answers no call before it")


def refusal(field: str, why: str) -> ApiError:
    """A field of the request is to blame."""
    return ApiError(400, f"{field}: {why}", code="invalid_value", param=field)
