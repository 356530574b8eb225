"""Conversations in files."""

import pytest

from penstock.chat.deepseek_v4.render import Encoding
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.chat.saved import conversation_from_json, conversation_to_json
from penstock.errors import SnapshotError


def test_everything_comes_back() -> None:
    conversation = Conversation(
        (
            Message(Role.USER, "hé"),
            Message(Role.ASSISTANT, "", "", (ToolCall("1", "f", "{}", "raw"),), sampled=(1, 2)),
            Message(Role.TOOL, "x", tool_call_id="1"),
        ),
        tools=({"name": "f"},),
        thinking=Thinking.MAX,
        encoding=Encoding.V0731,
        response_schema={"type": "object"},
        json_only=True,
    )
    assert conversation_from_json(conversation_to_json(conversation)) == conversation


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "penstock-conversation", "version": 9}',
        conversation_to_json(Conversation((Message(Role.USER, "a"),))).replace('"a"', "5"),
        conversation_to_json(Conversation((Message(Role.USER, "a"),))).replace('"user"', '"nobody"'),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(SnapshotError, match=r"notes\.json: not a saved conversation"):
        conversation_from_json(text, "notes.json")
