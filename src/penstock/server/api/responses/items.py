"""Items, as clients send them and as they are kept: what they mean as messages."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter

from penstock.chat.messages import Message, Role, ToolCall
from penstock.server.api.custom_tools import as_arguments
from penstock.server.api.responses.tools import full_name
from penstock.server.api.shared import Body, Json, only_text, text_as
from penstock.server.service import new_id


class _Item(Body):
    """Fields that mean nothing here are kept, so that an item comes back as it was sent."""

    model_config = ConfigDict(extra="allow")
    id: str | None = None


class TextPart(Body):
    model_config = ConfigDict(extra="allow")
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class Refusal(Body):
    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[TextPart | Refusal, Field(discriminator="type")],
    BeforeValidator(only_text),
]
Parts = Annotated[list[Part], text_as("input_text")]


class MessageItem(_Item):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class FunctionCall(_Item):
    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class FunctionCallOutput(_Item):
    type: Literal["function_call_output"]
    call_id: str
    output: Parts


class CustomCall(_Item):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str


class CustomCallOutput(_Item):
    type: Literal["custom_tool_call_output"]
    call_id: str
    output: Parts


class ReasoningItem(_Item):
    type: Literal["reasoning"]
    summary: list[TextPart] = Field(default_factory=list)
    content: list[TextPart] | None = None


class Reference(Body):
    """Stands for an item of a response that is kept."""

    type: Literal["item_reference"]
    id: str


def _with_type(item: Any) -> Any:
    """The type of a message may be left out, and that of a reference."""
    if not isinstance(item, dict) or "type" in item:
        return item
    if "role" in item:
        return {"type": "message", **item}
    return {"type": "item_reference", **item} if item.keys() == {"id"} else item


Known = MessageItem | FunctionCall | FunctionCallOutput | CustomCall | CustomCallOutput | ReasoningItem
Item = Annotated[
    Annotated[Known | Reference, Field(discriminator="type")],
    BeforeValidator(_with_type),
]
KEPT: Final[TypeAdapter[list[Known]]] = TypeAdapter(list[Annotated[Known, Field(discriminator="type")]])
PREFIXES: Final = {
    "message": "msg_",
    "function_call": "fc_",
    "function_call_output": "fc_",
    "custom_tool_call": "ctc_",
    "custom_tool_call_output": "ctco_",
    "reasoning": "rs_",
}


def as_kept(items: Iterable[Known]) -> list[Json]:
    """Items as a response's list of them shows them: each has an id, and what a message says is parts."""
    return [_as_kept(item) for item in items]


def _as_kept(item: Known) -> Json:
    fields = item.model_dump(exclude_unset=True)
    if not fields.get("id"):
        fields["id"] = new_id(PREFIXES[item.type])
    if not isinstance(item, ReasoningItem):
        fields.setdefault("status", "completed")
    return fields


def as_messages(items: Iterable[Known]) -> list[Message]:
    """Reasoning, text and calls that follow each other in this order are one turn of the assistant."""
    messages: list[Message] = []
    for item in items:
        match item:
            case ReasoningItem():
                turn = _open_turn(messages, "content", "tool_calls")
                thoughts = [turn.reasoning] if turn.reasoning else []
                text = "\n\n".join([*thoughts, _joined(item.content or item.summary)])
                messages.append(replace(turn, reasoning=text))
            case MessageItem(role="assistant"):
                turn = _open_turn(messages, "content", "tool_calls")
                messages.append(replace(turn, content=_joined(item.content)))
            case FunctionCall() | CustomCall():
                turn = _open_turn(messages)
                messages.append(replace(turn, tool_calls=(*turn.tool_calls, _call(item))))
            case FunctionCallOutput() | CustomCallOutput():
                result = _joined(item.output, "\n\n")
                messages.append(Message(Role.TOOL, result, tool_call_id=item.call_id))
            case MessageItem():
                messages.append(Message(Role(item.role), _joined(item.content)))
    return messages


def _call(item: FunctionCall | CustomCall) -> ToolCall:
    arguments = item.arguments if isinstance(item, FunctionCall) else as_arguments(item.input)
    return ToolCall(item.call_id, full_name(item.name, item.namespace), arguments)


def _open_turn(messages: list[Message], *without: str) -> Message:
    """The assistant's turn that an item belongs to, taken off the end: the last one, unless it has something already
    that comes after such an item."""
    last = messages[-1] if messages else None
    if last is None or last.role is not Role.ASSISTANT or any(getattr(last, name) for name in without):
        return Message(Role.ASSISTANT)
    return messages.pop()


def _joined(parts: list[TextPart] | list[Part], between: str = "\n") -> str:
    return between.join(_texts(parts))


def _texts(parts: list[TextPart] | list[Part]) -> Iterator[str]:
    for part in parts:
        yield part.refusal if isinstance(part, Refusal) else part.text
