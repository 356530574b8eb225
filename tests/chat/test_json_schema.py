"""What a schema says of how a value is written, and of a tool's parameters."""

from typing import Any

import pytest

from penstock.chat.json_schema import Forms, forms, parameters


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, Forms(True, (), False)),
        ({"type": "object"}, Forms(False, (), True)),
        ({"type": ["string", "null"]}, Forms(True, (), True)),
        ({"enum": ["a", "b", 1]}, Forms(False, ("a", "b"), True)),
        ({"const": "a"}, Forms(False, ("a",), False)),
        ({"$ref": "#/$defs/a~1b"}, Forms(False, ("x",), False)),
        ({"$ref": "#/$defs/loop"}, Forms(True, (), True)),
        ({"$ref": 5}, Forms(True, (), True)),
        ({"anyOf": [{"const": "a"}, {"oneOf": [{"type": "integer"}]}]}, Forms(False, ("a",), True)),
        ({"allOf": [{"type": "string"}, {"enum": ["a"]}]}, Forms(False, ("a",), False)),
        ({"anyOf": "nonsense"}, Forms(True, (), True)),
        ({"anyOf": [{"const": str(number)} for number in range(65)]}, Forms(True, (), True)),
        (True, Forms(True, (), True)),
        ({}, Forms(True, (), True)),
    ],
)
def test_how_a_value_is_written(schema: Any, expected: Forms) -> None:
    root = {"$defs": {"a/b": {"const": "x"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert forms(schema, root) == expected


@pytest.mark.parametrize(
    ("schema", "named", "required", "others"),
    [
        (None, [], [], None),
        ({}, [], [], True),
        ({"properties": {}}, [], [], None),
        ({"properties": {}, "additionalProperties": True}, [], [], True),
        ({"additionalProperties": False}, [], [], None),
        ({"additionalProperties": {"type": "null"}}, [], [], {"type": "null"}),
        ({"properties": {"a": {}}, "required": ["b", 3]}, ["a", "b"], ["b"], None),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"properties": {"a": {}}}}}, ["a"], [], None),
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, [], [], {}),
        ({"properties": 3, "required": "a"}, [], [], True),
    ],
)
def test_the_parameters_of_a_tool(schema: Any, named: list[str], required: list[str], others: Any) -> None:
    found = parameters(schema)
    assert (list(found.named), sorted(found.required), found.others) == (named, required, others)
