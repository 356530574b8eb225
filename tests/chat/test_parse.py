"""What the model writes, read as it streams."""

import re

import pytest

from penstock.chat.deepseek_v4.parse import Parser
from penstock.chat.events import (
    ArgumentsDelta,
    Done,
    ReasoningDelta,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from penstock.chat.messages import ToolCall
from penstock.errors import OptionError
from penstock.tokenizer import Tokenizer, byte_tokenizer_metadata, tokenizer_from_gguf
from tests.chat.reading import D, events_of, message_of, parser, push_all, reply_for

BLOCK = (
    f'\n\n<{D}tool_calls>\n<{D}invoke name="f">\n<{D}parameter name="a" string="true">q"</{D}parameter>\n'
    f'<{D}parameter name="n" string="false">[1, {{}}]</{D}parameter>\n</{D}invoke>\n'
    f'<{D}invoke name="g">\n\n</{D}invoke>\n</{D}tool_calls>'
)
CALLS = [
    ToolCallStarted(0, "c0", "f"),
    ArgumentsDelta(0, '{"a": "q\\"", "n": [1, {}]}'),
    ToolCallStarted(1, "c1", "g"),
    ArgumentsDelta(1, "{}"),
    ToolCallFinished(0, ToolCall("c0", "f", '{"a": "q\\"", "n": [1, {}]}', BLOCK)),
    ToolCallFinished(1, ToolCall("c1", "g", "{}", BLOCK)),
    Done("tool_calls"),
]


def test_reasoning_then_answer() -> None:
    assert events_of("\n\nHm.\n\n</think>\n\nYes.\n", thinking=True) == [
        ReasoningDelta("Hm."),
        TextDelta("Yes.\n"),
        Done("stop"),
    ]


def test_a_turn_that_never_stops_thinking() -> None:
    assert events_of("Hm.\n</thi", "length", thinking=True) == [ReasoningDelta("Hm.\n</thi"), Done("length")]


def test_stray_end_of_thinking_is_removed() -> None:
    assert events_of("</think>\n\na</think>b") == [TextDelta("ab"), Done("stop")]


def test_calls() -> None:
    assert events_of(f"Sure.{BLOCK}") == [TextDelta("Sure."), *CALLS]
    assert events_of(BLOCK) == CALLS


def test_text_after_the_block_is_not_part_of_the_turn() -> None:
    assert events_of(f"{BLOCK}\nand so on") == CALLS
    reader = parser()
    reader.push(BLOCK)
    assert reader.finished


def test_a_call_while_reasoning_is_a_call_if_there_are_tools() -> None:
    assert events_of(f"Hm.{BLOCK}", thinking=True) == [ReasoningDelta("Hm."), *CALLS]
    assert events_of(f"Hm.{BLOCK}", thinking=True, tools=False) == [
        ReasoningDelta(f"Hm.{BLOCK}"),
        Done("stop"),
    ]


def test_without_tools_a_block_is_text() -> None:
    assert events_of(f"Sure.{BLOCK}", tools=False) == [TextDelta(f"Sure.{BLOCK}"), Done("stop")]


def test_a_forced_call() -> None:
    forced = f"\n\n<{D}tool_calls>\n"
    assert events_of(BLOCK.removeprefix(forced), forced=True) == CALLS
    with pytest.raises(OptionError, match="forced call"):
        parser(forced=True, thinking=True)


def test_a_continued_answer_keeps_its_line_feeds() -> None:
    assert events_of("\n\nmore", continuing=True) == [TextDelta("\n\nmore"), Done("stop")]


def test_text_streams_as_soon_as_it_is_certain() -> None:
    reader = parser()
    assert reader.push("a <") == [TextDelta("a ")]
    assert reader.push("b>\n") == [TextDelta("<b>")]
    assert reader.push(f"\n<{D}tool") == []
    assert reader.push("box>") == [TextDelta(f"\n\n<{D}toolbox>")]


def test_string_arguments_stream() -> None:
    reader = parser()
    reader.push(f'<{D}tool_calls><{D}invoke name="f"><{D}parameter name="a" string="true">')
    assert reader.push("long") == [ArgumentsDelta(0, "long")]
    assert reader.push(' "text</') == [ArgumentsDelta(0, ' \\"text')]


def test_stop_strings_end_the_answer_only() -> None:
    assert events_of("END</think>one END two", thinking=True, stop=["END"]) == [
        ReasoningDelta("END"),
        TextDelta("one "),
        Done("stop", "END"),
    ]
    assert events_of(f"one EN{BLOCK}", stop=["END", "invoke"]) == [TextDelta("one EN"), *CALLS]
    assert events_of(f"END{BLOCK}", stop=["END"]) == [Done("stop", "END")]
    assert events_of("a\n", stop=["\n"]) == [TextDelta("a"), Done("stop", "\n")]


@pytest.mark.parametrize(
    ("value", "json_text"),
    [
        ("3", "3"),
        (" [1,2]\n", "[1,2]"),
        ("{'a': 1}", "\"{'a': 1}\""),
        ("NaN", '"NaN"'),
        ("", '""'),
        ("9" * 5000, "9" * 5000),
        ("[" * 100_000, '"' + "[" * 100_000 + '"'),
    ],
    ids=["number", "blanks", "python", "nan", "empty", "long", "deep"],
)
def test_values_that_are_not_strings(value: str, json_text: str) -> None:
    message, _ = message_of(
        f'<{D}tool_calls><{D}invoke name="f"><{D}parameter name="a" string="false">{value}</{D}parameter>'
        f"</{D}invoke></{D}tool_calls>"
    )
    assert message.tool_calls[0].arguments == f'{{"a": {json_text}}}'


def test_entities_are_not_unescaped() -> None:
    message, _ = message_of(
        f'<{D}tool_calls><{D}invoke name="f"><{D}parameter name="a" string="true">&lt;p&gt;</parameter>'
        f"</{D}parameter></{D}invoke></{D}tool_calls>"
    )
    assert message.tool_calls[0].arguments == '{"a": "&lt;p&gt;</parameter>"}'


def test_ids_cannot_be_guessed() -> None:
    reader = Parser(thinking=False, tools=True)
    ids = {e.id for e in reader.push(BLOCK) if isinstance(e, ToolCallStarted)}
    assert len(ids) == 2
    assert all(re.fullmatch("call_[0-9a-f]{24}", name) for name in ids)


def test_finish_reasons_are_checked_and_said_once() -> None:
    reader = parser()
    with pytest.raises(OptionError, match="finish reason"):
        reader.finish("tired")
    assert reader.finish("length") == [Done("length")]
    assert reader.finish("length") == []
    assert reader.push("more") == []


class TestTokens:
    @pytest.fixture(scope="class")
    def tokenizer(self) -> Tokenizer:
        return tokenizer_from_gguf(byte_tokenizer_metadata(400))

    def read(self, tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[object]:
        return list(push_all(reply_for(tokenizer, **options), tokenizer, ids))

    def test_markers_by_id_and_spelled_out_are_the_same(self, tokenizer: Tokenizer) -> None:
        text = f"Hm é\n</think>ok{BLOCK}"
        by_id = self.read(tokenizer, tokenizer.encode(text, special=True), thinking=True)
        spelled = self.read(tokenizer, tokenizer.encode(text), thinking=True)
        assert [e for e in by_id if not isinstance(e, ArgumentsDelta)][-3:] == CALLS[-3:]
        assert [e for e in spelled if not isinstance(e, ArgumentsDelta)][-3:] == CALLS[-3:]

    def test_characters_are_complete(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("世")
        assert self.read(tokenizer, ids) == [TextDelta("世"), Done("stop")]
        assert self.read(tokenizer, ids[:2]) == [TextDelta("\ufffd"), Done("stop")]

    def test_markers_out_of_place_are_dropped_and_eos_ends(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("a<｜User｜>b<think><｜end▁of▁sentence｜>c", special=True)
        reply = reply_for(tokenizer)
        assert push_all(reply, tokenizer, ids) == [TextDelta("a"), TextDelta("b"), Done("stop")]
        assert reply.finished
        assert tokenizer.decode(reply.tokens) == "a<｜User｜>b<think>"
