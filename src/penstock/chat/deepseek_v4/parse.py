"""What the model writes becomes events: reasoning, answer, tool calls.

The grammar is `reasoning </think> answer [tool block] EOS`, without the first part if the prompt has closed it.
Text may arrive in any pieces: the events, joined, are the same.  Whatever may still become part of a marker is held
back until it is decided.

A model that only speaks of its format is quoted: in code, in a value, and while it reasons unless the turn ends with
the block, because then it forgot to end its reasoning first.  `<think>` before all else opens reasoning that the
prompt did not ask for.
"""

import secrets
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from penstock.chat.deepseek_v4.code import Code
from penstock.chat.deepseek_v4.markers import DSML, END_THINK, THINK
from penstock.chat.deepseek_v4.tags import OPENINGS, find_first
from penstock.chat.deepseek_v4.tool_block import Block
from penstock.chat.deepseek_v4.tools import BEFORE_BLOCK, OPEN_BLOCK
from penstock.chat.events import Done, Event, ReasoningDelta, TextDelta
from penstock.engine.stops import StopStrings
from penstock.errors import OptionError


def random_call_id() -> str:
    """`call_` and 24 hexadecimal digits: a client cannot guess the id of another's call."""
    return f"call_{secrets.token_hex(12)}"


_PLACED: Final = (END_THINK, DSML)  # the markers that have a place in a turn


class _State(Enum):
    REASONING = auto()
    CONTENT = auto()
    BLOCK = auto()
    AFTER = auto()  # the block is closed, or a stop string was found: the rest is not part of the turn


class Parser:
    """Reads one turn.

    thinking    the prompt ends inside reasoning (`Prompt.thinking`)
    tools       tools are on offer: DSML is a call.  Without them it is text like any other.
    stop        strings that end the answer; they do not apply to reasoning and tool calls
    continuing  the turn goes on with text that is already there: its first line feeds count
    forced      the prompt ends with `forced_call_prefix`

    >>> parser = Parser(thinking=True, tools=False)
    >>> parser.push("Hmm.\\n</thi"), parser.push("nk>Yes"), parser.finish("stop")
    ([ReasoningDelta(text='Hmm.')], [TextDelta(text='Yes')], [Done(finish_reason='stop')])
    """

    def __init__(
        self,
        *,
        thinking: bool,
        tools: bool,
        stop: Sequence[str] = (),
        continuing: bool = False,
        forced: bool = False,
        new_id: Callable[[], str] = random_call_id,
    ):
        self.finished = False  # nothing that is pushed from now on matters: generation may end
        self._state = _State.REASONING if thinking else _State.CONTENT
        self._tools = tools
        self._stops = StopStrings(stop)
        self._started = continuing  # something of this part has been shown
        self._new_id = new_id
        self._held = ""
        self._code = Code()  # of what was shown of this part
        self._block: Block | None = None
        self._origin = self._state  # where the block began
        self._calls: list[Event] = []  # of a block in reasoning, where only the end of the turn decides
        self._events: list[Event] = []
        self._is_done = False
        self._tail = ""  # the end of a block in reasoning, where `</think>` may have begun
        self._marks = (END_THINK, *(OPENINGS if tools else ()))
        if forced:
            if thinking or not tools:
                raise OptionError("a forced call needs tools and a prompt that has closed the reasoning")
            self.push(BEFORE_BLOCK + OPEN_BLOCK)

    def push(self, text: str, special: bool = False) -> list[Event]:
        """Events of what is certain now.  `special`: `text` is a marker token's string.  Markers that have no place
        in a turn are dropped, unless they are quoted."""
        if self.finished or (special and text not in _PLACED and not self._quotes(text)):
            return []
        self._held += text
        while self._held and not self.finished and self._read():
            pass
        return self._taken()

    def finish(self, reason: str) -> list[Event]:
        """The rest, and `Done`.  `reason`: "stop" (EOS or a stop token) or "length"."""
        if reason not in ("stop", "length"):
            raise OptionError(f"finish reason is {reason!r}, expected 'stop' or 'length'")
        if self._is_done:
            return []
        self.finished = self._is_done = True
        block = self._block
        if block and self._state is _State.BLOCK:
            events = [*self._calls, *block.finish(cut=reason == "length")]
            if self._origin is _State.REASONING and (reason == "length" or not block.calls):
                self._state = self._origin
                self._show(block.text + self._held)
            else:
                self._events += events
                self._close_block(block)
                if block.calls and reason == "stop":
                    reason = "tool_calls"
        elif self._state is _State.AFTER:
            reason = "tool_calls" if block else "stop"
        else:
            self._show(self._held)
        if self._state is _State.CONTENT:
            self._answer(self._stops.finish())
        if self._stops.found:
            reason = "stop"
        self._events.append(Done(reason, self._stops.found))
        return self._taken()

    def _read(self) -> bool:
        """One step; whether there may be another."""
        match self._state:
            case _State.REASONING:
                return self._read_reasoning()
            case _State.CONTENT:
                return self._read_content()
            case _:
                return self._read_block()

    def _quotes(self, marker: str) -> bool:
        """Whether a marker that would be dropped here is something to read: in a value, in code, or `<think>` where
        it opens reasoning."""
        if self._state is _State.BLOCK:
            return self._block is not None and self._block.in_value
        first = marker == THINK and not self._started and not self._held.strip("\n")
        return first or self._code.after(self._held).open

    def _read_reasoning(self) -> bool:
        at, mark = self._next_mark()
        body = self._held[:at].rstrip("\n")
        self._show(body)
        if mark == END_THINK:  # the line feeds before it are not part of the reasoning
            self._end_reasoning(self._held[at + len(mark) :])
        elif mark == THINK:  # which the prompt has said already
            self._held = self._held[at + len(mark) :]
        elif mark:
            self._open_block(len(body), at)
        else:
            self._held = self._held[len(body) :]
        return bool(mark)

    def _read_content(self) -> bool:
        at, mark = self._next_mark()
        body = self._held[:at]
        if mark == END_THINK:  # one too many
            self._show(body)
            self._held = self._held[at + len(mark) :]
            return True
        if mark == THINK:
            self._state, self._held = _State.REASONING, self._held[at + len(mark) :]
            return True
        if self._tools:
            body = body.rstrip("\n")  # they go with the block, if one follows
        self._show(body)
        if mark:
            self._open_block(len(body), at)
        else:
            self._held = self._held[len(body) :]
        return bool(mark)

    def _next_mark(self) -> tuple[int, str]:
        """Where the next marker stands that is one.  What is shown in code is none, except that reasoning ends at the
        first `</think>` whatever stands before it."""
        marks = self._marks if self._started else (THINK, *self._marks)
        at, mark = find_first(self._held, marks)
        code, seen = self._code, 0
        while mark and not (mark == END_THINK and self._state is _State.REASONING):
            code, seen = code.after(self._held[seen:at]), at
            if mark == THINK and not self._held[:at].strip("\n"):
                break
            if mark != THINK and not code.open:
                break
            at, mark = find_first(self._held, marks, at + 1)
        return at, mark

    def _end_reasoning(self, rest: str) -> None:
        self._held, self._state, self._started, self._code = rest, _State.CONTENT, False, Code()

    def _open_block(self, begin: int, at: int) -> None:
        if self.finished:  # a stop string came first
            return
        if self._state is _State.CONTENT:
            self._answer(self._stops.finish())
        before, self._held = self._held[begin:at], self._held[at:]
        self._origin, self._state = self._state, _State.BLOCK
        self._block, self._calls, self._tail = Block(before, self._new_id), [], ""

    def _read_block(self) -> bool:
        block = self._block
        assert block is not None
        if self._origin is _State.REASONING:
            return self._read_block_in_reasoning(block)
        self._events += block.push(self._held)
        self._held = ""
        if block.failed:
            self._quote(block)
        elif block.closed:
            self._close_block(block)
        return block.failed or block.closed

    def _read_block_in_reasoning(self, block: Block) -> bool:
        """Until the turn ends, nothing has been called: `</think>` ends reasoning whatever stands before it, and a
        model that goes on was only thinking of a call."""
        new = self._tail + self._held
        self._tail = new[1 - len(END_THINK) :]
        if not block.closed:
            self._calls += block.push(self._held)
            self._held = block.rest
        if END_THINK in new:
            whole = block.text + self._held
            at = whole.index(END_THINK)
            self._state, self._block = self._origin, None
            self._show(whole[:at].rstrip("\n"))
            self._end_reasoning(whole[at + len(END_THINK) :])
            return True
        if block.failed or (block.closed and (self._held.strip() or not block.calls)):
            self._quote(block)
            return True
        return False

    def _close_block(self, block: Block) -> None:
        remains = block.remains.replace(END_THINK, "")
        if block.calls:
            self._events += [TextDelta(remains)] if remains else []
            self._events += block.finished_calls()
            self._state, self.finished = _State.AFTER, True
        else:  # it was only talk: back to where it began
            self._state, self._held, self._block = self._origin, block.rest, None
            self._show(remains)

    def _quote(self, block: Block) -> None:
        """It was only talk: text of the part where it began.  Of a block that was never closed, the prose is read on:
        there was no call before it, and there may be one behind it."""
        text, unread = block.text, block.unread
        self._state, self._block = self._origin, None
        self._show(text[: len(text) - len(unread)])
        self._held = unread + self._held

    def _show(self, text: str) -> None:
        """Text of the current part, without line feeds at its beginning."""
        if not self._started:
            text = text.lstrip("\n")
        self._started = self._started or bool(text)
        self._code = self._code.after(text)
        if self._state is _State.REASONING:
            self._events += [ReasoningDelta(text)] if text else []
        else:
            self._answer(self._stops.push(text))
            if self._stops.found:
                self._state, self.finished = _State.AFTER, True

    def _answer(self, text: str) -> None:
        if text:
            self._events.append(TextDelta(text))

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events
