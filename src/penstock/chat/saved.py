"""Conversations as JSON: what `/save` writes next to a session."""

import json
from dataclasses import asdict
from typing import Any

from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.errors import SnapshotError

FORMAT = "penstock-conversation"
VERSION = 1


def conversation_to_json(conversation: Conversation) -> str:
    """All of a conversation, readable by people."""
    messages = [_without_defaults(asdict(message)) for message in conversation.messages]
    content = asdict(conversation) | {"messages": messages}
    return json.dumps({"format": FORMAT, "version": VERSION, **content}, ensure_ascii=False, indent=1) + "\n"


def _without_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in (None, ()) or name == "content"}


def conversation_from_json(text: str, name: str = "conversation") -> Conversation:
    """The reverse; SnapshotError, opened by `name`, if the text is anything else."""
    try:
        data = json.loads(text)
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError(f"expected {FORMAT} of version {VERSION}")
        return Conversation(
            messages=tuple(map(_message, data["messages"])),
            tools=tuple(dict(tool) for tool in data["tools"]),
            thinking=Thinking(data["thinking"]),
            encoding=_text(data["encoding"]),
            response_schema=data["response_schema"],
            json_only=bool(data["json_only"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SnapshotError(f"{name}: not a saved conversation: {error!r:.200}") from error


def _message(data: dict[str, Any]) -> Message:
    sampled = data.get("sampled")
    return Message(
        Role(data["role"]),
        _text(data["content"]),
        None if data.get("reasoning") is None else _text(data["reasoning"]),
        tuple(ToolCall(**call) for call in data.get("tool_calls", ())),
        data.get("tool_call_id"),
        None if sampled is None else tuple(int(token) for token in sampled),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text; found {value!r:.40}")
    return value
