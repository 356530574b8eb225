"""Tools in a prompt: the block that describes them, and the calls that were made."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from penstock.chat.deepseek_v4.markers import DSML, END_THINK, THINK
from penstock.chat.messages import ToolCall
from penstock.chat.prompt import Piece

OPEN_BLOCK = f"<{DSML}tool_calls>\n"
CLOSE_BLOCK = f"</{DSML}tool_calls>"
BEFORE_BLOCK = "\n\n"

_INTRODUCTION = f"""\
## Tools

You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a "<{DSML}tool_calls>" block like the following:

<{DSML}tool_calls>
<{DSML}invoke name="$TOOL_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$TOOL_NAME2">
...
</{DSML}invoke>
</{DSML}tool_calls>

String parameters should be specified as is and set `string="true"`. \
For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), \
you MUST output your complete reasoning inside {THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

"""
_CONCLUSION = """

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""


def forced_call_prefix() -> tuple[Piece, ...]:
    """What makes the model's turn start with a tool call, appended after the marker that ends its reasoning."""
    return tuple(marked(BEFORE_BLOCK + OPEN_BLOCK))


def tools_block(tools: Sequence[Mapping[str, Any]]) -> Iterator[Piece]:
    """The description of the tools.  Its own markers are markers; the schemas are text."""
    yield from marked(_INTRODUCTION)
    yield Piece("\n".join(to_json(_function(tool)) for tool in tools))
    yield from marked(_CONCLUSION)


def _function(tool: Mapping[str, Any]) -> Any:
    """The function object, also when it comes in the wrapper that APIs put around it."""
    return tool["function"] if tool.get("type") == "function" and "function" in tool else tool


def call_blocks(calls: Sequence[ToolCall], message: int) -> Iterator[Piece]:
    """Calls in history.  Those with the same `raw` came from one block, which is replayed as it was sampled."""
    for raw, group in groupby(calls, key=lambda call: call.raw):
        if raw is not None:
            yield from marked(raw, message)
        else:
            yield from marked(BEFORE_BLOCK + OPEN_BLOCK, message)
            for call in group:
                yield from _invoke(call, message)
            yield from marked(CLOSE_BLOCK, message)


def _invoke(call: ToolCall, message: int) -> Iterator[Piece]:
    yield from marked(f"<{DSML}invoke name=", message)
    yield Piece(f'"{call.name}">\n', message=message)
    arguments = _arguments(call.arguments)
    for name, value in arguments.items():
        is_string = isinstance(value, str)
        text = value if is_string else to_json(value)
        yield from marked(f"<{DSML}parameter name=", message)
        yield Piece(f'"{name}" string="{"true" if is_string else "false"}">{text}', message=message)
        yield from marked(f"</{DSML}parameter>\n", message)
    if not arguments:
        yield Piece("\n", message=message)  # DeepSeek's encoder joins no lines with one line feed more
    yield from marked(f"</{DSML}invoke>\n", message)


def _arguments(text: str) -> Mapping[str, Any]:
    """Parameters by name.  What is not a JSON object becomes one parameter, so that nothing is lost."""
    if not text.strip():
        return {}
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return {"arguments": text}
    return parsed if isinstance(parsed, dict) else {"arguments": text}


def to_json(value: Any) -> str:
    """JSON as DeepSeek's encoder writes it: `", "` and `": "` between items, other scripts unescaped."""
    return json.dumps(value, ensure_ascii=False)


_MARKERS = re.compile(f"({DSML}|{THINK}|{END_THINK})")


def marked(text: str, message: int | None = None) -> Iterator[Piece]:
    """Splits text of the engine's own making: every marker in it is meant as one."""
    for position, part in enumerate(_MARKERS.split(text)):
        if part:
            yield Piece(part, special=position % 2 == 1, message=message)
