"""A block of tool calls, read as it arrives.

Strict about what counts as a call, lenient about spelling, and nothing is lost: what is not part of a complete call
comes out as text, unless a limit cut it off.  A block spelled exactly as taught keeps its text as `raw` for replay;
one with any defect does not, so that history shows the model the right form.  Where prose stands in place of the
first call, nobody meant one: the block has `failed`, and all of it is text at once.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.chat.deepseek_v4.tags import CLOSINGS, END_PARAMETER, MARKS, Tag, find_first, read_tag
from penstock.chat.deepseek_v4.tools import to_json
from penstock.chat.events import ArgumentsDelta, Event, ToolCallFinished, ToolCallStarted
from penstock.chat.messages import ToolCall

_TAG_END = re.compile(r"[>\n<]")


@dataclass(slots=True)
class _Invoke:
    """A call under construction.  `begin` and `leftover`: how long the block's texts were when it began.  `body`: all
    that stands in it before any parameter."""

    call: ToolCall
    begin: int
    leftover: int
    body: str = ""
    fragments: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Value:
    """A parameter's value.  A certain string is streamed; else `held` decides in the end what it is."""

    string: bool | None
    held: list[str] = field(default_factory=list)


class Block:
    """`push` text from the opening tag on.  Once `closed`, `rest` is what came after the block."""

    def __init__(self, before: str, new_id: Callable[[], str]):
        self.closed = False
        self.failed = False
        self.rest = ""
        self.calls: list[ToolCall] = []
        self._read = [before]  # all that was read, with the line feeds that led to the block
        self._length = len(before)
        self._leftover = ""
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

    @property
    def text(self) -> str:
        """All that has been pushed, with what led to it and without `rest`."""
        return "".join(self._read) + self._buffer

    @property
    def unread(self) -> str:
        """The end of `text` that has not become part of anything: of a block that has `failed`, the prose."""
        return self._buffer

    @property
    def in_value(self) -> bool:
        """What is pushed now is part of a value, unless it ends it."""
        return self._value is not None

    def finished_calls(self) -> list[Event]:
        raw = "".join(self._read) if self._exact else None
        return [ToolCallFinished(index, replace(call, raw=raw)) for index, call in enumerate(self.calls)]

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────

    def push(self, text: str) -> list[Event]:
        """Events of what is certain now."""
        self._buffer += text
        self._advance()
        return self._taken_events()

    def finish(self, cut: bool) -> list[Event]:
        """No more text.  Unless it was `cut` by a limit, a call counts if only closing tags are missing: the model
        has ended its turn."""
        if self._value and not cut and self._read_value(self._value, last=True):
            self._advance()
        pending = self._take(len(self._buffer))
        self._exact = self._exact and self.closed
        if cut:  # half a call is of no use to anybody, least of all as text
            self._cut = True
            self._leftover = self._leftover[: self._invoke.leftover] if self._invoke else self._leftover
            self._invoke = None
        elif self._invoke and (self._value or (self._invoke.names and pending.strip())):
            self._drop_invoke(self._invoke, self._length)
        else:
            self._keep(pending)
            self._end_invoke(self._length)
        return self._taken_events()

    def _advance(self) -> None:
        while not (self.closed or self.failed) and (
            self._read_value(self._value) if self._value else self._read_tag()
        ):
            pass
        if self.closed:
            self.rest, self._buffer = self._buffer, ""

    def _read_value(self, value: _Value, last: bool = False) -> bool:
        """More of a value; whether it has ended.  It ends at its own tag.  Any other closing tag ends it only where
        nothing but another tag, or the end of the turn (`last`), can follow: in a value it is quoted."""
        ended = False
        while not ended:
            at, mark = find_first(self._buffer, CLOSINGS)
            if not mark and not last:
                break
            verdict = self._ends_value(self._buffer[at:], last) if mark else False
            if verdict is None:
                break
            ended = verdict
            at = at if ended else min(at + 1, len(self._buffer))
            self._add(value, self._take(at))
            if not mark:
                return False
        if not ended:
            self._add(value, self._take(at))
            return False
        self._end_value(value)
        self._close_due = True
        return True

    def _end_value(self, value: _Value) -> None:
        if value.string:
            self._emit('"')
        else:
            text = "".join(value.held)
            self._emit(json_text := _as_json(text))
            self._exact = self._exact and json_text == text.strip()  # else it was no JSON
        self._value = None

    def _ends_value(self, text: str, last: bool) -> bool | None:
        """Whether the closing tag that `text` begins with ends a value; None if that is not known yet."""
        if text.startswith(END_PARAMETER):
            return True
        end = _TAG_END.search(text, 1)
        if end is None:
            return False if last else None
        if end[0] != ">":
            return False
        following = text[end.end() :].lstrip()
        if not following:
            return last or None
        if following.startswith(MARKS):
            return True
        return None if not last and any(mark.startswith(following) for mark in MARKS) else False

    def _add(self, value: _Value, text: str) -> None:
        if value.string:
            self._emit(to_json(text)[1:-1])
        else:
            value.held.append(text)

    def _read_tag(self) -> bool:
        at = self._buffer.find("<")
        self.failed = self._is_prose(self._buffer[:at] if at >= 0 else self._buffer)
        if (
            at < 0 or self.failed
        ):  # held whole: what counts as blank must not depend on how the stream was cut
            return False
        self._keep(self._take(at))
        end = _TAG_END.search(self._buffer, 1)
        if end is None:
            return False
        begin = self._length
        if end[0] == ">":
            text = self._take(end.end())
            self._apply(read_tag(text), text, begin)
        else:
            self._keep(self._take(end.start()))
        return True

    def _is_prose(self, text: str) -> bool:
        """Whether `text`, where the first call or its first parameter should be, shows that nobody meant one."""
        if self.calls or not text.strip():
            return False
        if self._invoke is None:
            return True
        return not self._invoke.names and not (self._invoke.body + text).lstrip().startswith("{")

    def _apply(self, tag: Tag, text: str, begin: int) -> None:
        close_due, self._close_due = self._close_due, False
        self._exact = self._exact and tag.exact
        match tag:
            case Tag("block", close=False):
                self._exact = self._exact and not self._opened
                self._opened = True
            case Tag("block", close=True):
                self._exact = self._exact and self._opened and self._invoke is None
                self._end_invoke(begin)
                self.closed = True
            case Tag("invoke", close=False, name=str(name)) if name:
                self._exact = self._exact and self._opened and self._invoke is None
                self._end_invoke(begin)
                self._invoke = _Invoke(ToolCall(self._new_id(), name, ""), begin, len(self._leftover))
                if tag.empty:
                    self._end_invoke(self._length)
            case Tag("invoke", close=True) if self._invoke:
                self._exact = self._exact and not close_due
                self._end_invoke(self._length)
            case Tag("parameter", close=False, name=str(name)) if (
                self._invoke and name not in self._invoke.names
            ):
                self._begin_value(self._invoke, name, tag.string)
                if self._value and tag.empty:
                    self._end_value(self._value)
            case Tag(close=True) if close_due:
                pass
            case _:
                self._keep(text)

    def _end_invoke(self, end: int) -> None:
        """A call is over, at `end` of what was read.  Without parameters its body may be their JSON object, as other
        models write it; prose is no call."""
        invoke = self._invoke
        if invoke is None:
            return
        if invoke.names:
            self._emit("}")
        elif not invoke.body.strip():
            self._start(invoke)
            self._emit("{}")
        elif (body := _as_json(invoke.body)).startswith("{"):
            self._leftover = self._leftover[: invoke.leftover]
            self._start(invoke)
            self._emit(body)
        else:
            self._drop_invoke(invoke, end)
            return
        self.calls.append(replace(invoke.call, arguments="".join(invoke.fragments)))
        self._invoke = None

    def _drop_invoke(self, invoke: _Invoke, end: int) -> None:
        """It was no call: all of it is text."""
        self._leftover = self._leftover[: invoke.leftover] + "".join(self._read)[invoke.begin : end]
        self._exact = False
        self._invoke = None

    def _start(self, invoke: _Invoke) -> None:
        self._events.append(ToolCallStarted(len(self.calls), invoke.call.id, invoke.call.name))

    def _begin_value(self, invoke: _Invoke, name: str, string: bool | None) -> None:
        if not invoke.names:
            self._start(invoke)
        self._emit(f"{', ' if invoke.names else '{'}{to_json(name)}: " + ('"' if string else ""))
        invoke.names.add(name)
        self._value = _Value(string)

    def _emit(self, fragment: str) -> None:
        if fragment and self._invoke:
            self._invoke.fragments.append(fragment)
            self._events.append(ArgumentsDelta(len(self.calls), fragment))

    def _keep(self, text: str) -> None:
        """Text that belongs to no call.  Blanks between tags are layout."""
        if self._invoke and not self._invoke.names:
            self._invoke.body += text
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
