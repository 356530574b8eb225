"""A block of tool calls, read as it arrives.

Strict about what counts as a call, lenient about spelling, and nothing is lost: what is not part of a complete call
comes out as text, unless a limit cut it off.  A block spelled exactly as taught keeps its text as `raw` for replay;
one with any defect does not, so that history shows the model the right form.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.chat.deepseek_v4.tags import MARKED_ENDS, PLAIN_ENDS, Tag, find_first, read_tag
from penstock.chat.deepseek_v4.tools import to_json
from penstock.chat.events import ArgumentsDelta, Event, ToolCallFinished, ToolCallStarted
from penstock.chat.messages import ToolCall

_TAG_END = re.compile(r"[>\n<]")


@dataclass(slots=True)
class _Invoke:
    """A call under construction.  `begin` and `leftover`: how long the block's texts were when it began."""

    call: ToolCall
    begin: int
    leftover: int
    fragments: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Value:
    """A parameter's value.  A certain string is streamed; else `held` decides in the end what it is."""

    string: bool | None
    held: list[str] = field(default_factory=list)


class Block:
    """`push` text from the opening tag on.  Once `closed`, `rest` is what came after the block."""

    def __init__(self, before: str, plain: bool, new_id: Callable[[], str]):
        self.closed = False
        self.rest = ""
        self.calls: list[ToolCall] = []
        self._read = [before]  # all that was read, with the line feeds that led to the block
        self._length = len(before)
        self._leftover = ""
        self._plain = plain
        self._ends = PLAIN_ENDS if plain else MARKED_ENDS
        self._new_id = new_id
        self._opened = False
        self._cut = False
        self._exact = True
        self._invoke: _Invoke | None = None
        self._value: _Value | None = None
        self._close_due = False  # a value has ended, so the next closing tag is its own
        self._buffer = ""
        self._events: list[Event] = []

    # ── what came of it ───────────────────────────────────────────────────────────────────────────────────

    @property
    def remains(self) -> str:
        """What is not part of a call: without any call, the whole text.  Of a block that was cut off, only what was
        never meant as one."""
        return self._leftover if self.calls or self._cut else "".join(self._read)

    def finished_calls(self) -> list[Event]:
        raw = "".join(self._read) if self._exact else None
        return [ToolCallFinished(index, replace(call, raw=raw)) for index, call in enumerate(self.calls)]

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────

    def push(self, text: str) -> list[Event]:
        """Events of what is certain now."""
        self._buffer += text
        while not self.closed and (self._read_value(self._value) if self._value else self._read_tag()):
            pass
        if self.closed:
            self.rest, self._buffer = self._buffer, ""
        return self._taken_events()

    def finish(self, cut: bool) -> list[Event]:
        """No more text.  Unless it was `cut` by a limit, a call counts if only closing tags are missing: the model
        has ended its turn.  Not so where no marker shows that a call was meant at all."""
        pending = self._take(len(self._buffer))
        self._exact = self._exact and self.closed
        if cut and not self._plain:  # half a call is of no use to anybody, least of all as text
            self._cut = True
            self._leftover = self._leftover[: self._invoke.leftover] if self._invoke else self._leftover
            self._invoke = None
            return self._taken_events()
        if self._invoke and (cut or self._plain or self._value or pending.strip()):
            text = "".join(self._read)
            self._leftover = self._leftover[: self._invoke.leftover] + text[self._invoke.begin :]
            self._invoke = None
        else:
            self._keep(pending)
            self._end_invoke()
        return self._taken_events()

    def _read_value(self, value: _Value) -> bool:
        at, end = find_first(self._buffer, self._ends)
        text = self._take(at)
        if value.string:
            self._emit(to_json(text)[1:-1])
        else:
            value.held.append(text)
        if end:
            self._emit('"' if value.string else _as_json("".join(value.held)))
            self._value, self._close_due = None, True
        return bool(end)

    def _read_tag(self) -> bool:
        at = self._buffer.find("<")
        if at < 0:  # held whole, so that what counts as blank does not depend on how the stream was cut
            return False
        self._keep(self._take(at))
        end = _TAG_END.search(self._buffer, 1)
        if end is None:
            return False
        if end[0] == ">":
            begin = self._length
            text = self._take(end.end())
            self._apply(read_tag(text), text, begin)
        else:
            self._keep(self._take(end.start()))
        return True

    def _apply(self, tag: Tag, text: str, begin: int) -> None:
        close_due, self._close_due = self._close_due, False
        self._exact = self._exact and tag.exact
        match tag:
            case Tag("block", close=False):
                self._exact = self._exact and not self._opened
                self._opened = True
            case Tag("block", close=True):
                self._exact = self._exact and self._opened and self._invoke is None
                self._end_invoke()
                self.closed = True
            case Tag("invoke", close=False, name=str(name)) if name:
                self._exact = self._exact and self._opened and self._invoke is None
                self._end_invoke()
                self._begin_invoke(name, begin)
            case Tag("invoke", close=True) if self._invoke:
                self._exact = self._exact and not close_due
                self._end_invoke()
            case Tag("parameter", close=False, name=str(name)) if (
                self._invoke and name not in self._invoke.names
            ):
                self._begin_value(self._invoke, name, tag.string)
            case Tag(close=True) if close_due:
                pass
            case _:
                self._keep(text)

    def _begin_invoke(self, name: str, begin: int) -> None:
        call = ToolCall(self._new_id(), name, "")
        self._invoke = _Invoke(call, begin, len(self._leftover))
        self._events.append(ToolCallStarted(len(self.calls), call.id, name))

    def _end_invoke(self) -> None:
        if self._invoke:
            self._emit("}" if self._invoke.fragments else "{}")
            self.calls.append(replace(self._invoke.call, arguments="".join(self._invoke.fragments)))
            self._invoke = None

    def _begin_value(self, invoke: _Invoke, name: str, string: bool | None) -> None:
        self._emit(f"{', ' if invoke.names else '{'}{to_json(name)}: " + ('"' if string else ""))
        invoke.names.add(name)
        self._value = _Value(string)

    def _emit(self, fragment: str) -> None:
        if fragment and self._invoke:
            self._invoke.fragments.append(fragment)
            self._events.append(ArgumentsDelta(len(self.calls), fragment))

    def _keep(self, text: str) -> None:
        """Text that belongs to no call.  Blanks between tags are layout."""
        if text.strip():
            self._leftover += text
            self._exact = False

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        self._read.append(taken)
        self._length += count
        return taken

    def _taken_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _as_json(text: str) -> str:
    """A value that was not declared a string: JSON as it stands if it is JSON, else a JSON string of it."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)  # NaN and the infinities, which Python reads and JSON does not have

    try:
        json.loads(text, parse_constant=refuse, parse_int=str)  # int() refuses thousands of digits
    except (ValueError, RecursionError):
        return to_json(text)
    return text.strip()
