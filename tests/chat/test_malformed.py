"""Damaged tool calls: what counts, what comes out as text, and that nothing is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.chat.deepseek_v4.tool_block import Block
from penstock.chat.events import TextDelta, ToolCallFinished, ToolCallStarted, Turn
from tests.chat.malformed import FORMS, GOOD, INVOKE
from tests.chat.reading import D, events_of, message_of, parser


@pytest.mark.parametrize("name", FORMS)
def test_what_comes_of_it(name: str) -> None:
    form = FORMS[name]
    message, reason = message_of(form.text, form.reason, thinking=form.thinking)
    assert [json.loads(call.arguments) for call in message.tool_calls] == form.calls
    assert (message.content, message.reasoning or "") == (form.content, form.reasoning)
    assert reason == ("tool_calls" if form.calls and form.reason == "stop" else form.reason)
    # A damaged block is not repeated to the model.
    assert all((call.raw is not None) == form.kept for call in message.tool_calls)


@pytest.mark.parametrize("name", FORMS)
def test_a_client_is_never_told_of_a_call_that_is_none(name: str) -> None:
    form = FORMS[name]
    started = sum(
        isinstance(e, ToolCallStarted)
        for e in events_of(list(form.text), form.reason, thinking=form.thinking)
    )
    assert started == len(form.calls) + (name == "cut by the limit in a value")  # not known yet


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_cut_anywhere_stream_and_whole_agree(name: str, reason: str) -> None:
    form = FORMS[name]

    def same_id() -> str:
        return "c"

    how: dict[str, Any] = {"thinking": form.thinking, "new_id": same_id}
    for end in range(len(form.text) + 1):
        text = form.text[:end]
        whole = events_of(text, reason, **how)
        assert events_of(list(text), reason, **how) == whole
        assert events_of([text[: end // 2], text[end // 2 :]], reason, **how) == whole


def test_the_table_of_peers_says_what_is_tested() -> None:
    page = (Path(__file__).parents[2] / "docs" / "chat.md").read_text()
    table = page.partition("| what the model writes |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]
    assert {row[0].removeprefix("| "): row[5] for row in rows} == {
        name: form.verdict for name, form in FORMS.items()
    }
    assert [row[0].removeprefix("| ") for row in rows] == list(FORMS)


def test_a_good_block_is_kept_as_it_was_written() -> None:
    message, _ = message_of(GOOD)
    assert message.tool_calls[0].raw == GOOD


@pytest.mark.parametrize("cut", range(GOOD.index("invoke"), len(GOOD) - 1))
def test_cut_by_length(cut: int) -> None:
    message, reason = message_of("ok" + GOOD[:cut], "length")
    assert reason == "length"
    assert message.content == "ok"  # half a call is no text
    assert bool(message.tool_calls) == (f"</{D}invoke>" in GOOD[:cut])


def test_a_call_that_is_cut_never_finishes() -> None:
    second = f'<{D}invoke name="g">\n<{D}parameter name="b" string="true">va'
    events = events_of(f"<{D}tool_calls>\n{INVOKE}{second}", "length")
    assert [e.index for e in events if isinstance(e, ToolCallStarted)] == [0, 1]
    assert [e.index for e in events if isinstance(e, ToolCallFinished)] == [0]
    assert not any(isinstance(e, TextDelta) for e in events)


def test_a_value_that_is_not_closed_is_no_call() -> None:
    text = GOOD[: GOOD.index("q") + 1]
    assert message_of(text)[0].content == text.lstrip()
    assert message_of(text)[1] == "stop"


def test_a_call_after_an_example_is_a_call() -> None:
    example = f"```{GOOD}\n```"
    message, _ = message_of(example + GOOD)
    assert message.content == example
    assert [call.arguments for call in message.tool_calls] == ['{"a": "q"}']


def test_prose_does_not_wait_for_a_block_to_end() -> None:
    reader = parser()
    shown = reader.push(f"open <{D}tool_calls> and g")
    assert "".join(e.text for e in shown if isinstance(e, TextDelta)) == f"open <{D}tool_calls> and g"


@pytest.mark.parametrize("closing", ["tool_calls", "invoke", "note"])
def test_a_value_ends_at_its_own_tag(closing: str) -> None:
    value = f"end with </{D}{closing}> please, or <{D}tool_calls>, </{D[1:]}parameter> or `</{D}parameter`"
    text = GOOD.replace(">q<", f">{value}<")
    assert [json.loads(c.arguments) for c in message_of(text)[0].tool_calls] == [{"a": value}]
    assert events_of(list(text)) == events_of(text)  # however it is cut


@pytest.mark.parametrize(
    "talk",
    [
        f"format is <{D}tool_calls>",
        f'so <{D}tool_calls>\n<{D}invoke name="f">',
        f"so{GOOD}",
        f"so{GOOD}\nor not",
        f"so{GOOD[:-20]}",
    ],
)
def test_the_end_of_reasoning_is_one_whatever_stands_before_it(talk: str) -> None:
    text = f"{talk}</think>answer"
    message, reason = message_of(text, thinking=True)
    assert (message.reasoning, message.content, reason) == (talk, "answer", "stop")
    assert events_of(list(text), thinking=True) == events_of(text, thinking=True)


def test_a_call_that_was_only_thought_of() -> None:
    talk = f"I would write{GOOD}\nbut I shall not."
    message, reason = message_of(talk, thinking=True)
    assert (message.reasoning, message.tool_calls, reason) == (talk, (), "stop")


def test_talk_of_tools_while_reasoning() -> None:
    text = f"I could <{D}tool_calls> or </{D}tool_calls> not.</think>No."
    message, _ = message_of(text, thinking=True)
    assert (message.reasoning, message.content) == (text.removesuffix("</think>No."), "No.")


@pytest.mark.parametrize("thinking", [False, True])
def test_openings_without_end_take_no_time(thinking: bool) -> None:
    """What has been read as talk is not read again for every opening in it."""
    reader, read = parser(thinking=thinking), 0
    take = Block._take

    def counted(block: Block, count: int) -> str:
        nonlocal read
        read += count
        return take(block, count)

    text = f"<{D}tool_calls>\n" * 200 + "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Block, "_take", counted)
        reader.push(text)
    assert read <= len(text)


class TestMarkers:
    """Marker tokens, which text can only spell."""

    def read(self, *pieces: str, thinking: bool = False) -> tuple[str, str, list[str]]:
        reader, turn = parser(thinking=thinking), Turn(thinking)
        for piece in pieces:
            turn.add(reader.push(piece, special=piece in ("<think>", "</think>", "<｜User｜>", D)))
        turn.add(reader.finish("stop"))
        message = turn.message()
        return message.reasoning or "", message.content, [call.arguments for call in message.tool_calls]

    def test_in_a_value_they_are_part_of_it(self) -> None:
        before, after = GOOD.split(">q<")
        found = self.read(f"{before}>", "<｜User｜>", "</think>", "<think>", f"<{after}")
        assert found == ("", "", ['{"a": "<｜User｜></think><think>"}'])

    def test_in_code_they_are_quoted(self) -> None:
        _, content, _ = self.read("`", "<｜User｜>", "` asks, `", "</think>", "` ends")
        assert content == "`<｜User｜>` asks, `</think>` ends"
        assert self.read("`", "<｜User｜>", "`", "</think>", thinking=True)[0] == "`<｜User｜>`"

    def test_elsewhere_they_are_dropped(self) -> None:
        assert self.read("a", "<｜User｜>", "b", "<think>", "c") == ("", "abc", [])

    def test_reasoning_that_nobody_asked_for_is_reasoning(self) -> None:
        assert self.read("\n", "<think>", "hm", "</think>", "ok") == ("hm", "ok", [])
        assert self.read("<think>", "hm", "</think>", "ok", thinking=True) == ("hm", "ok", [])
