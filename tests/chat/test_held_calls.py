"""Calls of tools: what can be sampled can be read, and what was right before is still possible."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.chat.deepseek_v4.grammar import turn_constraint
from penstock.chat.deepseek_v4.markers import DSML, END_THINK
from penstock.chat.deepseek_v4.tools import BEFORE_BLOCK, CLOSE_BLOCK, OPEN_BLOCK, call_blocks
from penstock.chat.messages import ToolCall
from penstock.chat.prompt import Prompt
from penstock.errors import OptionError
from tests.chat.holding import NOW, WEATHER, allows, conversation, held_by, ids, turn_of
from tests.engine.random_answers import answer, constraints, tokenizer

names = st.text("abcXYZ_- .é世", min_size=1, max_size=5)
values: list[tuple[dict[str, Any], st.SearchStrategy[Any]]] = [
    ({"type": "string"}, st.text(st.characters(exclude_categories=["Cs"]), max_size=9)),
    ({"type": "string"}, st.sampled_from(["</div>", "a < b\n\n</", "<<", "世界 😀", "｜DSML", '"', "</｜"])),
    ({"type": "integer"}, st.integers()),
    ({"type": "boolean"}, st.booleans()),
    ({"enum": ["red", "a</b", "", 5, None]}, st.sampled_from(["red", "a</b", "", 5, None])),
    ({"const": "only"}, st.just("only")),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, st.sampled_from(["x", None, "null"])),
    ({"type": ["string", "number"]}, st.sampled_from(["x", 2.5])),
    ({"$ref": "#/$defs/colour"}, st.sampled_from(["red", "blue"])),
    ({"allOf": [{"$ref": "#/$defs/tree"}]}, st.sampled_from([{}, {"left": {"left": {}}}])),
    ({"type": "array", "items": {"type": "string"}}, st.lists(st.sampled_from(["é", "</b>"]), max_size=3)),
    ({}, st.sampled_from(["text", 1, None, {"a": [1, "b"]}])),
]
DEFS = {
    "colour": {"enum": ["red", "blue"]},
    "tree": {
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/tree"}},
        "additionalProperties": False,
    },
}


@st.composite
def tools(draw: st.DrawFn, name: str = "f") -> tuple[dict[str, Any], dict[str, Any]]:
    """A tool, and arguments that fit it, in any order."""
    chosen = draw(st.dictionaries(names, st.sampled_from(values), max_size=4))
    required = [key for key in chosen if draw(st.booleans())]
    schema = {
        "type": "object",
        "properties": {key: schema for key, (schema, _) in chosen.items()},
        "required": required,
        "additionalProperties": False,
        "$defs": DEFS,
    }
    given = draw(st.permutations([key for key in chosen if key in required or draw(st.booleans())]))
    return {"name": name, "parameters": schema}, {key: draw(chosen[key][1]) for key in given}


@settings(max_examples=60, deadline=None)
@given(st.lists(tools(), min_size=1, max_size=3), st.integers(0, 1 << 30), st.booleans())
def test_whatever_is_sampled_is_a_call_that_fits(
    offered: list[tuple[dict[str, Any], Any]], seed: int, many: bool
) -> None:
    functions = [{**tool, "name": f"f{number}"} for number, (tool, _) in enumerate(offered)]
    held = held_by(conversation(*functions, parallel_calls=many), force_call=True)
    sampled = answer(held, seed)
    turn = turn_of(sampled, forced=True)
    assert turn.content == []
    assert turn.finish_reason == "tool_calls"
    assert many or len(turn.calls) == 1
    schemas = {function["name"]: function["parameters"] for function in functions}
    for call in turn.calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
        assert call.raw == BEFORE_BLOCK + OPEN_BLOCK + tokenizer().decode(sampled)


@settings(max_examples=100, deadline=None)
@given(tools(), st.booleans())
def test_a_call_that_fits_may_be_made_and_is_replayed_in_the_same_tokens(
    made: tuple[dict[str, Any], dict[str, Any]], twice: bool
) -> None:
    tool, arguments = made
    calls = [ToolCall("", "f", json.dumps(arguments, ensure_ascii=False))] * (1 + twice)
    block = "".join(piece.text for piece in call_blocks(calls, 0))
    tokens = Prompt(tuple(call_blocks(calls, 0))).ids(tokenizer())
    held = held_by(conversation(tool))
    assert allows(held, tokens), block
    turn = turn_of(tokens)
    assert [json.loads(call.arguments) for call in turn.calls] == [arguments] * (1 + twice)
    assert Prompt(tuple(call_blocks(turn.calls, 0))).ids(tokenizer()) == tokens


def test_a_value_may_have_tags_lines_and_any_script() -> None:
    value = "<html>\n\n</body> </ < 世界 😀 </html>\n"
    text = f'<{DSML}parameter name="city" string="true">{value}</{DSML}parameter>\n'
    call = f'<{DSML}invoke name="get_weather">\n{text}</{DSML}invoke>\n{CLOSE_BLOCK}'
    assert allows(held_by(conversation(WEATHER), force_call=True), ids(call))
    (made,) = turn_of(ids(call), forced=True).calls
    assert json.loads(made.arguments) == {"city": value}


def test_a_value_cannot_spell_what_would_end_it() -> None:
    """The parser would take the text for the marker."""
    anything = {"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}
    for opening in (' string="true">', ' string="false">"'):
        begun = ids(f'<{DSML}invoke name="f">\n<{DSML}parameter name="x"{opening}')
        for spelled, good in [
            (f"</{DSML}", False),
            ("</DSML｜", False),
            (f"<{DSML}", True),
            ("</｜DSML", True),
        ]:
            held = held_by(conversation(anything), force_call=True)
            logits = np.ones(tokenizer().vocab_size, np.float32)
            possible = True
            for token in [*begun, *tokenizer().encode(spelled)]:
                possible = possible and bool(held.mask(logits)[token] > -np.inf)
                held.accept(token)
            assert possible is good, (opening, spelled)


@pytest.mark.parametrize(
    "body",
    [
        "\n",  # without what is required
        '<D>parameter name="days" string="false">3</D>parameter>\n',
        '<D>parameter name="city" string="false">"Rome"</D>parameter>\n',
        '<D>parameter name="city" string="true">A</D>parameter>\n' * 2,
        '<D>parameter name="city" string="true">A</D>parameter>\n\n',
        '<D>parameter name="town" string="true">A</D>parameter>\n',
        '<D>parameter name="city" string="true">A</D>parameter>\n'
        '<D>parameter name="days" string="true">3</D>parameter>\n',
        '<D>parameter name="city" string="true">A</D>parameter>\n'
        '<D>parameter name="unit" string="true">miles</D>parameter>\n',
        '<D>parameter name="city" string="true">A</D>invoke>\n',
    ],
)
def test_what_does_not_fit_cannot_be_written(body: str) -> None:
    call = f'<{DSML}invoke name="get_weather">\n{body}</{DSML}invoke>\n{CLOSE_BLOCK}'.replace("D>", DSML)
    held = held_by(conversation(WEATHER), force_call=True)
    assert not allows(held, ids(call))


def test_only_tools_on_offer_are_called_and_one_at_a_time_if_so_asked() -> None:
    now = f'<{DSML}invoke name="now">\n\n</{DSML}invoke>\n'
    cases: list[tuple[list[dict[str, Any]], bool, int, bool]] = [
        ([NOW, WEATHER], True, 1, True),
        ([NOW, WEATHER], True, 3, True),
        ([NOW], False, 1, True),
        ([NOW], False, 2, False),
        ([NOW], True, 0, False),
        ([WEATHER], True, 1, False),
    ]
    for offered, many, count, good in cases:
        held = held_by(conversation(*offered, parallel_calls=many), force_call=True)
        assert allows(held, ids(now * count + CLOSE_BLOCK)) is good, (offered, many, count)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_block_once_opened_is_a_good_one(seed: int) -> None:
    """The model opens a block where it was taught to, and is made to stumble over markers from there on."""
    marker, angle = tokenizer().token_id(DSML), tokenizer().encode("<")[0]
    assert marker is not None
    held, opening = held_by(conversation(WEATHER, NOW)), [*ids("So.\n\n<"), marker]
    for token in opening:
        held.accept(token)
    turn = turn_of([*opening, *answer(held, seed, favourite=[marker, angle])])
    assert turn.finish_reason == "tool_calls"
    assert all(call.raw for call in turn.calls)
    assert "".join(turn.content) == "So."


OPENING = f"<{DSML}tool_calls>"


@pytest.mark.parametrize(
    ("before", "thinking", "place"),
    [
        ("", False, "held"),
        ("\n\n", False, "held"),
        ("So.\n\n", False, "held"),
        ("So.\n", False, "held"),
        ("Use ", False, "closed"),
        ("Use `</", False, "closed"),
        ("Hm.\n\n", True, "free"),
        (f"I use {OPENING}, then ", True, "free"),
        (f"Hm.{END_THINK}", True, "held"),
        (f"{OPENING}{END_THINK}\n\n", True, "held"),
        (f"Hm.{END_THINK}Use ", True, "closed"),
    ],
)
def test_a_block_is_held_where_one_may_begin(before: str, thinking: bool, place: str) -> None:
    """While it reasons, the model may quote its format; within a line of the answer it would be half a call."""
    good = f'{OPENING}\n<{DSML}invoke name="now">\n\n</{DSML}invoke>\n{CLOSE_BLOCK}'
    for text, is_call in [(good, True), (f"{OPENING} it says", False), (good.replace("tool_", "x_"), False)]:
        fine = place == "free" or (place == "held" and is_call)
        assert allows(held_by(conversation(NOW), thinking=thinking), ids(before + text)) is fine, text


def test_a_choice_of_tools_is_held_by_the_grammar() -> None:
    def call(name: str) -> list[int]:
        return ids(f'\n\n{OPENING}\n<{DSML}invoke name="{name}">\n\n</{DSML}invoke>\n{CLOSE_BLOCK}')

    def may(name: str, *chosen: str) -> bool:
        return allows(held_by(conversation(NOW, {"name": "later"}, choice=chosen)), call(name))

    assert may("now", "now")
    assert not may("later", "now")
    assert may("later", "later", "now")
    assert not may("now")  # none of them
    none = held_by(conversation(NOW, choice=()), thinking=True)
    assert allows(none, ids(f"Hm.{END_THINK}Plain text."))
    forced = held_by(conversation(NOW, {"name": "later"}, choice=("later",)), force_call=True)
    assert not allows(forced, ids(f'<{DSML}invoke name="now">\n\n</{DSML}invoke>\n{CLOSE_BLOCK}'))


def test_talk_is_free_besides_the_spelling_of_markers() -> None:
    codec = tokenizer()
    held = held_by(conversation(NOW))
    logits = np.ones(codec.vocab_size, np.float32)
    logits[codec.token_id(DSML)] = 0
    for token in codec.encode("Look: </div> <b> | tool_calls> DSML <tool>"):
        masked = held.mask(logits)
        assert np.flatnonzero(np.isinf(masked)).tolist() in ([], [codec.token_id(DSML)])
        held.accept(token)
    assert not allows(held_by(conversation(NOW)), codec.encode(f"So: <{DSML}invoke"))
    assert not allows(held_by(conversation(NOW)), codec.encode("So: <DSML｜invoke"))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "colour"},
        {"type": "array", "items": {"pattern": "(?=a)"}},
        {"$ref": "http://elsewhere/x"},
        {"type": "integer", "minimum": 3, "maximum": 1},
        {"type": "array", "items": {"minimum": float("nan"), "type": "number"}},
    ],
)
def test_a_schema_that_cannot_be_used(schema: dict[str, Any]) -> None:
    properties = {"x": schema, "unit": {"enum": ["a"]}, "y": {"type": "array", "items": {"type": "boolean"}}}
    tool = {"name": "odd", "parameters": {"type": "object", "properties": properties, "required": ["unit"]}}

    def call(unit: str, y: str) -> list[int]:
        values = [("unit", "true", unit), ("x", "false", "[1]"), ("y", "false", y)]
        body = "".join(
            f'<{DSML}parameter name="{name}" string="{string}">{value}</{DSML}parameter>\n'
            for name, string, value in values
        )
        return ids(f'\n\n<{DSML}tool_calls>\n<{DSML}invoke name="odd">\n{body}</{DSML}invoke>\n{CLOSE_BLOCK}')

    asked = conversation(NOW, tool)
    assert allows(held_by(asked), call("a", "[true]")), "any JSON will do"
    assert not allows(held_by(asked), call("b", "[true]")), "the others are held as before"
    assert not allows(held_by(asked), call("a", "[1]"))
    with pytest.raises(OptionError, match="tools: the parameters of 'odd'"):
        turn_constraint(constraints(), asked, thinking=False, force_call=True)


def test_names_that_no_call_can_hold() -> None:
    odd = {"type": "object", "properties": {'a"b': {"type": "string"}, "c": {"type": "null"}}}
    assert allows(
        held_by(conversation({"name": "f", "parameters": odd}), force_call=True),
        ids(
            f'<{DSML}invoke name="f">\n<{DSML}parameter name="c" string="false">null</{DSML}parameter>\n'
            f"</{DSML}invoke>\n{CLOSE_BLOCK}"
        ),
    )
    with pytest.raises(OptionError, match="tools: no name"):
        turn_constraint(constraints(), conversation({"name": "a>b"}), thinking=False)


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"additionalProperties": True}, "nonsense"])
def test_a_tool_without_declared_parameters_takes_any(schema: Any) -> None:
    held = held_by(conversation({"name": "f", "parameters": schema}), force_call=True)
    body = f'<{DSML}parameter name="x y" string="true">1</{DSML}parameter>\n'
    body += f'<{DSML}parameter name="z" string="false">{{"a": 1}}</{DSML}parameter>\n'
    assert allows(held, ids(f'<{DSML}invoke name="f">\n{body}</{DSML}invoke>\n{CLOSE_BLOCK}'))


def test_many_parameters() -> None:
    properties = {f"p{number}": {"type": "integer"} for number in range(70)}
    for count, name, good in [(64, "p63", True), (64, "p64", False), (70, "p69", True)]:
        some = dict(list(properties.items())[:count])
        held = held_by(
            conversation({"name": "f", "parameters": {"type": "object", "properties": some}}), force_call=True
        )
        body = f'<{DSML}parameter name="{name}" string="false">1</{DSML}parameter>\n'
        assert allows(held, ids(f'<{DSML}invoke name="f">\n{body}</{DSML}invoke>\n{CLOSE_BLOCK}')) is good
