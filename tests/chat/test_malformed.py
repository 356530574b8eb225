"""Damaged tool calls: what counts, what comes out as text, and that nothing is lost."""

import json

import pytest

from penstock.chat.events import TextDelta, ToolCallFinished, ToolCallStarted
from tests.chat.reading import D, events_of, message_of, parser

PARAMETER = f'<{D}parameter name="a" string="true">q</{D}parameter>'
INVOKE = f'<{D}invoke name="f">\n{PARAMETER}\n</{D}invoke>\n'
GOOD = f"\n\n<{D}tool_calls>\n{INVOKE}</{D}tool_calls>"
Q = {"a": "q"}


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        pytest.param(GOOD.replace(D, D[1:]), [Q], "", id="first bar lost"),
        pytest.param(GOOD.replace(f"</{D}p", f"</{D[1:]}p"), [Q], "", id="first bar lost once"),
        pytest.param(GOOD.replace("tool_calls", "function_calls"), [Q], "", id="name of V3.2"),
        pytest.param(f"\n\n{INVOKE}", [Q], "", id="no block around the call"),
        pytest.param(GOOD.replace(' string="true"', ""), [Q], "", id="string attribute missing, text"),
        pytest.param(
            GOOD.replace(' string="true">q', ">[1]"), [{"a": [1]}], "", id="string attribute missing, JSON"
        ),
        pytest.param(GOOD.replace('"', "'"), [Q], "", id="single quotes"),
        pytest.param(GOOD.replace('"f"', "“f”"), [Q], "", id="typographic quotes"),
        pytest.param(GOOD.replace('"f"', "f"), [Q], "", id="no quotes"),
        pytest.param(GOOD.replace(f"</{D}tool_calls>", ""), [Q], "", id="block not closed"),
        pytest.param(GOOD.replace(f"</{D}invoke>\n", ""), [Q], "", id="call not closed"),
        pytest.param(f"<{D}tool_calls>{INVOKE.replace(f'</{D}invoke>', '')}", [Q], "", id="neither closed"),
        pytest.param(GOOD.replace(f"</{D}parameter>", ""), [Q | {"a": "q\n"}], "", id="parameter not closed"),
        pytest.param(GOOD.replace(f"</{D}parameter>", f"</{D}value>"), [Q], "", id="closed by another name"),
        pytest.param(
            f'<{D}tool_calls><{D}invoke name="g">{INVOKE}</{D}tool_calls>', [{}, Q], "", id="nested calls"
        ),
        pytest.param(
            GOOD.replace(PARAMETER, PARAMETER + PARAMETER.replace("q", "z")),
            [Q],
            PARAMETER.replace("q", "z"),
            id="parameter twice",
        ),
        pytest.param(
            f"<{D}tool_calls>{PARAMETER}{INVOKE}</{D}tool_calls>",
            [Q],
            f"<{D}tool_calls>{PARAMETER}",
            id="parameter outside",
        ),
        pytest.param(
            GOOD.replace(PARAMETER, f"<{D}note>{PARAMETER}"), [Q], f"<{D}note>", id="unknown tag inside"
        ),
        pytest.param(GOOD.replace(INVOKE, f"{INVOKE}so"), [Q], "\nso", id="text inside"),
        pytest.param(f"<{D}tool_calls>\n<{D}tool_calls>{INVOKE}</{D}tool_calls>", [Q], "", id="opened twice"),
        pytest.param(
            GOOD.replace(' name="f"', ""),
            [],
            GOOD.replace(' name="f"', "").lstrip(),
            id="call without a name",
        ),
        pytest.param(f"a <{D}note>b", [], f"a <{D}note>b", id="unknown tag outside"),
        pytest.param(f"a {PARAMETER}", [], f"a {PARAMETER}", id="parameter outside a block"),
        pytest.param(
            f"a<{D}tool_calls>b</{D}tool_calls>c", [], f"a<{D}tool_calls>b</{D}tool_calls>c", id="empty"
        ),
        pytest.param(
            f'<{D}tool_calls><{D}invoke name="f">\n{{"city": "Beijing", "to": "<b>"}}\n</{D}invoke></{D}tool_calls>',
            [{"city": "Beijing", "to": "<b>"}],
            "",
            id="JSON in place of parameters",
        ),
        pytest.param(
            f'<{D}invoke name="f">{{"a": "q"}}', [Q], "", id="JSON in place of parameters, nothing closed"
        ),
        pytest.param(
            f'{INVOKE}<{D}invoke name="g">as said</{D}invoke>\n',
            [Q],
            f'<{D}invoke name="g">as said</{D}invoke>',
            id="prose in the second call",
        ),
    ],
)
def test_defects(text: str, calls: list[dict[str, object]], content: str) -> None:
    message, reason = message_of(text)
    assert [json.loads(call.arguments) for call in message.tool_calls] == calls
    assert message.content == content
    assert reason == ("tool_calls" if calls else "stop")
    assert all(
        call.raw is None for call in message.tool_calls
    )  # a damaged block is not repeated to the model


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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(GOOD.replace(D, ""), id="no marker"),
        pytest.param(f"```xml\n{GOOD.replace(D, '')}\n```", id="no marker, in a fence"),
        pytest.param("<function_calls>\n<invoke name=bash>", id="no marker, not closed"),
        pytest.param(f"So:\n```xml{GOOD}\n```\nlike this.", id="in a fence"),
        pytest.param(f"~~~~{GOOD}\n~~~\n{GOOD}", id="in a fence that is not closed yet"),
        pytest.param(f"use `<{D}tool_calls>` for calls", id="in a line of code"),
        pytest.param(f"use `{INVOKE.strip().replace(chr(10), '')}` for calls", id="a call in a line of code"),
        pytest.param(f"open <{D}tool_calls> and go on", id="prose after the opening"),
        pytest.param(f'<{D}invoke name="f">calls f</{D}invoke>', id="prose in a call"),
        pytest.param(f'write <{D}invoke name="f"> first', id="prose after a call's tag"),
    ],
)
def test_what_is_only_quoted_is_text(text: str) -> None:
    message, reason = message_of(text)
    assert (message.content, message.tool_calls, reason) == (text.lstrip("\n"), (), "stop")
    assert [type(e).__name__ for e in events_of(list(text))] == [
        "TextDelta",
        "Done",
    ]  # and never began as a call


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
