"""Laws of reading and writing turns, over made-up ones."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.chat.deepseek_v4.render import render
from penstock.chat.events import ArgumentsDelta, ReasoningDelta, TextDelta
from penstock.chat.messages import Conversation, Message, Role, Thinking, ToolCall
from penstock.tokenizer import byte_tokenizer_metadata, tokenizer_from_gguf
from tests.chat.reading import D, events_of, message_of, push_all, reply_for

TOKENIZER = tokenizer_from_gguf(byte_tokenizer_metadata(400))
TOOL = {"name": "f"}

# Text that the format can carry: DeepSeek escapes nothing, so a turn's parts hold no markers and begin and end
# with something visible.
WORDS = st.lists(
    st.sampled_from(
        ["a", "<", "</", "<b>", "é", "世界", "😀", '"', "\\", "\n", " ", "&lt;", "｜", "DSML", "}"]
    )
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    max_size=6,
).map("".join)
TEXT = WORDS.map(lambda text: text.strip("\n")).filter(
    lambda text: "</think>" not in text and "DSML｜" not in text
)
VALUE = WORDS.filter(lambda text: "</｜DSML｜" not in text)
NAME = st.text("abcdefghijklmnopqrstuvwxyz_é-. ", min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | VALUE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(st.tuples(NAME, st.dictionaries(NAME, JSON, max_size=3)), max_size=3)


def written(reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """The turn as the model would write it."""
    made = tuple(ToolCall("", name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls)
    message = Message(Role.ASSISTANT, content, reasoning, made)
    conversation = Conversation((message,), tools=(TOOL,), thinking=Thinking.LOW)
    pieces = render(conversation, generate=False).pieces
    at = next(i for i, p in enumerate(pieces) if p.special and p.text == "<｜Assistant｜>")
    return "".join(piece.text for piece in pieces[at + 2 : -1])


@given(TEXT, TEXT, CALLS)
def test_what_is_written_is_read(
    reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    text = written(reasoning, content, calls)
    message, reason = message_of(text, thinking=True)
    assert (message.reasoning, message.content) == (reasoning, content)
    assert [(call.name, json.loads(call.arguments)) for call in message.tool_calls] == calls
    assert reason == ("tool_calls" if calls else "stop")


SCRAPS = st.lists(
    st.sampled_from(
        [
            "</think>",
            f"<{D}tool_calls>\n",
            f"</{D}tool_calls>",
            f'<{D}invoke name="f">',
            f"</{D}invoke>",
            f'<{D}parameter name="a" string="true">',
            f'<{D}parameter name="b" string="false">',
            f'<{D}parameter name="c">',
            f"</{D}parameter>",
            f'<{D}invoke name="h"/>',
            "<think>",
            "`",
            "```\n",
            "    ",
            "> ",
            "{",
            "<tool_calls>",
            "</tool_calls>",
            '<invoke name="g">',
            "</parameter>",
            "<DSML｜tool_calls>",
            "</DSML｜invoke>",
            "\n",
            "\n\n",
            "<",
            "</",
            D,
            "stop",
            "x",
            "[1]",
            '"',
            ">",
        ]
    ),
    max_size=14,
).map("".join)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[first:last] for first, last in pairwise(edges)]


@settings(max_examples=150)
@given(
    SCRAPS,
    st.lists(st.integers(0, 400), max_size=6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), ("stop",), ("\n\n", "x[")]),
    st.sampled_from(["stop", "length"]),
)
def test_how_the_stream_is_cut_does_not_matter(
    text: str, places: list[int], thinking: bool, tools: bool, stop: tuple[str, ...], reason: str
) -> None:
    # A block that turns out to be talk has taken ids, as many as were read of it.
    options = {"thinking": thinking, "tools": tools, "stop": stop, "new_id": lambda: "c"}
    whole = events_of(text, reason, **options)
    assert events_of(cut(text, places), reason, **options) == whole
    assert events_of(list(text), reason, **options) == whole


@settings(max_examples=100)
@given(SCRAPS)
def test_nothing_visible_is_lost(text: str) -> None:
    """Without a complete call, everything but the marks of thinking comes out as text."""
    message, _ = message_of(text)
    if not message.tool_calls:
        shown = (message.reasoning or "") + message.content
        for mark in ("<think>", "</think>"):
            shown, text = shown.replace(mark, ""), text.replace(mark, "")
        assert "".join(shown.split()) == "".join(text.split())


@given(TEXT, TEXT, CALLS, st.lists(st.tuples(st.integers(0, 2000), SCRAPS, st.integers(0, 6)), max_size=4))
def test_damage_never_raises_and_arguments_are_always_json(
    reasoning: str,
    content: str,
    calls: list[tuple[str, dict[str, Any]]],
    damage: list[tuple[int, str, int]],
) -> None:
    text = written(reasoning, content, calls)
    for place, scrap, gone in damage:
        at = place % (len(text) + 1)
        text = text[:at] + scrap + text[at + gone :]
    for thinking in (True, False):
        message, _ = message_of(text, thinking=thinking)
        for call in message.tool_calls:
            assert isinstance(json.loads(call.arguments), dict)


@given(TEXT, TEXT, CALLS)
def test_no_marker_leaks(reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    for event in events_of(written(reasoning, content, calls), thinking=True):
        if isinstance(event, TextDelta | ReasoningDelta):
            assert D not in event.text
            assert "</think>" not in event.text
        elif isinstance(event, ArgumentsDelta):
            assert f"</{D}" not in event.json_fragment


@given(TEXT, TEXT, CALLS, st.sampled_from(["", "\n", "\n\n"]))
def test_replay_gives_the_sampled_tokens(
    reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]], layout: str
) -> None:
    """A turn sampled, read, and rendered again as history, by `raw` alone: the same tokens."""
    text = written(reasoning, content, calls).replace("tool_calls>\n<", f"tool_calls>\n{layout}<")
    question = Message(Role.USER, "q")
    asked = Conversation((question,), tools=(TOOL,), thinking=Thinking.LOW)
    prompt = render(asked)
    think_end, _, rest = text.partition("</think>")
    body, _, block = rest.partition(f"\n\n<{D}tool_calls>")
    sampled = [
        *TOKENIZER.encode(think_end),
        *TOKENIZER.encode("</think>", special=True),
        *TOKENIZER.encode(body + ("\n\n<" if block else "")),
        *(TOKENIZER.encode(f"{D}tool_calls>{block}", special=True) if block else []),
    ]
    reply = reply_for(TOKENIZER, thinking=True)
    push_all(reply, TOKENIZER, sampled)
    answered = Conversation((question, reply.turn.message()), tools=(TOOL,), thinking=Thinking.LOW)
    again = render(answered, generate=False).ids(TOKENIZER)
    assert again == [*prompt.ids(TOKENIZER), *sampled, *TOKENIZER.eos_ids]
