"""Answers in JSON: whatever is sampled fits its schema, and a schema that cannot be kept is refused by name."""

import json
import re
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.chat.deepseek_v4.grammar import turn_constraint
from penstock.chat.deepseek_v4.markers import DSML, END_THINK
from penstock.chat.deepseek_v4.tools import CLOSE_BLOCK
from penstock.errors import OptionError
from tests.chat.holding import JOB, NOW, allows, conversation, held_by, ids, turn_of
from tests.engine.random_answers import answer, constraints, tokenizer


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30), st.booleans())
def test_json_follows_the_reasoning(seed: int, thinking: bool) -> None:
    end = tokenizer().token_id(END_THINK)
    assert end is not None
    sampled = answer(held_by(conversation(response_schema=JOB), thinking=thinking), seed)
    assert thinking or end not in sampled
    turn = turn_of(sampled, thinking=thinking, tools=False)
    jsonschema.validate(json.loads("".join(turn.content)), JOB)


def test_any_object_where_no_form_is_demanded() -> None:
    for asked in (conversation(json_only=True), conversation(json_only=True, response_schema=JOB)):
        assert allows(held_by(asked), tokenizer().encode('{"any": [1, {"thing": null}]}'))
        assert not allows(held_by(asked), tokenizer().encode("[1]"))
    assert not allows(held_by(conversation(response_schema=JOB)), tokenizer().encode('{"any": 1}'))
    assert turn_constraint(constraints(), conversation(), thinking=False) is None


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('{"n":1}', True),
        ('{"n": 1}', True),
        ('{\n  "n": 1\n}', True),
        ('{\n\t"n": 1\r\n}', True),
        ('{"n":  1}', False),
        ('{\n\n"n": 1}', False),
        ('{"n": 1}\n', False),
        (' {"n": 1}', False),
    ],
)
def test_blanks_are_bounded(text: str, good: bool) -> None:
    assert allows(held_by(conversation(response_schema=JOB)), tokenizer().encode(text)) is good


def test_a_model_in_love_with_blanks_comes_to_an_end() -> None:
    codec = tokenizer()
    blanks = [id for id in range(codec.vocab_size) if codec.token_bytes(id).strip(b" \t\r\n") == b""]
    text = codec.decode(answer(held_by(conversation(response_schema=JOB)), 1, favourite=blanks))
    assert json.loads(text)["n"] is not None
    assert 20 < max(map(len, re.findall(r"\s+", text))) <= 42


def test_with_tools_the_answer_is_json_or_a_call() -> None:
    asked = conversation(NOW, response_schema=JOB)
    call = f'\n\n<{DSML}tool_calls>\n<{DSML}invoke name="now">\n\n</{DSML}invoke>\n{CLOSE_BLOCK}'
    for thinking in (False, True):
        before = f"Well.{END_THINK}" if thinking else ""
        for text, good in [('{"n": 1}', True), (call, True), ("Hello", False), ('{"n": 1}' + call, False)]:
            assert allows(held_by(asked, thinking=thinking), ids(before + text)) is good, (text, thinking)
    assert not allows(held_by(asked, thinking=True), ids("Well." + call))  # thinking is to end first


def test_json_that_is_begun_is_continued() -> None:
    held = held_by(conversation(response_schema=JOB), begun='{"n":')
    assert isinstance(json.loads('{"n":' + tokenizer().decode(answer(held, 2)))["n"], int)
    with pytest.raises(OptionError, match="messages"):
        turn_constraint(constraints(), conversation(response_schema=JOB), thinking=False, begun="Sure: ")


def test_a_schema_that_is_wrong_is_named() -> None:
    asked = conversation(response_schema={"type": "colour"}, schema_field="text.format.schema")
    with pytest.raises(OptionError, match=r"text\.format\.schema: Invalid type: colour"):
        turn_constraint(constraints(), asked, thinking=False)


BEYOND = r"is .*, beyond the numbers that can be kept: ±9007199254740992"


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "integer", "minimum": 1e300}, "minimum"),
        ({"type": "integer", "exclusiveMinimum": 1 << 60}, "exclusiveMinimum"),
        ({"type": "integer", "maximum": -1e300}, "maximum"),
        ({"type": "integer", "minimum": 9.3e18, "maximum": 1e19}, "minimum"),
        ({"type": "number", "exclusiveMaximum": -(10**40)}, "exclusiveMaximum"),
        ({"type": "number", "maximum": 1e30}, "maximum"),
        ({"type": ["integer", "null"], "minimum": 1e300}, "minimum"),
        ({"const": 123456789012345678901234567890}, "const"),
        ({"enum": [1, [{"x": 1e300}]]}, "enum"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}], "$defs": {"n": {"minimum": 1e300}}}, "minimum"),
    ],
)
def test_numbers_that_cannot_be_kept_are_refused_by_name(schema: dict[str, Any], named: str) -> None:
    for whole in (schema, {"type": "object", "properties": {"n": schema}}):
        with pytest.raises(OptionError, match=f"field: {named} {BEYOND}"):
            turn_constraint(
                constraints(), conversation(response_schema=whole, schema_field="field"), thinking=False
            )
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"n": schema}}}
    with pytest.raises(OptionError, match=f"tools: the parameters of 'f': {named} {BEYOND}"):
        turn_constraint(constraints(), conversation(tool), thinking=False, force_call=True)
    turn_constraint(constraints(), conversation(tool), thinking=False)  # any JSON, where nothing is demanded


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["integer", "number"]),
    bounds=st.dictionaries(
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
        st.integers(-(1 << 53), 1 << 53)
        | st.sampled_from([1e300, -1e300, 1.7976931348623157e308, 1 << 63, -(1 << 63), 0, 1, 0.5, 1e15]),
        max_size=3,
    ),
    seed=st.integers(0, 99),
)
def test_bounds_are_kept_or_refused(kind: str, bounds: dict[str, float], seed: int) -> None:
    schema = {"type": "object", "properties": {"n": {"type": kind, **bounds}}, "required": ["n"]}
    try:
        held = held_by(conversation(response_schema=schema))
    except OptionError:
        return
    jsonschema.validate(json.loads(tokenizer().decode(answer(held, seed))), schema)


def test_a_property_may_be_called_minimum() -> None:
    schema = {"type": "object", "properties": {"minimum": {"const": 5}}, "required": ["minimum"]}
    held = held_by(conversation(response_schema=schema))
    assert json.loads(tokenizer().decode(answer(held, 1)))["minimum"] == 5


def test_what_is_not_supported_is_left_out() -> None:
    schema = {**JOB, "unevaluatedProperties": False, "x-guidance": {"whitespace_flexible": True}}
    assert allows(held_by(conversation(response_schema=schema)), tokenizer().encode('{"n": 1}'))


def test_schemas_too_deep_are_refused() -> None:
    deep: dict[str, Any] = {"$ref": "#"}
    for _ in range(5_000):
        deep = {"items": deep}
    with pytest.raises(OptionError, match="deep"):
        turn_constraint(constraints(), conversation(response_schema=deep), thinking=False)
