"""The grammar of a block of tool calls, spelled as the model was taught to (`tool_text`).

Parameters may come in any order, each at most once, the required ones always.  A string is raw text; it ends at `</`
before the marker, so it may have any tags and lines of its own.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from penstock.chat.schema_shape import Forms, Parameters, alone, forms, parameters
from penstock.errors import OptionError

# No options of the client's own.  Spaces are as DeepSeek's encoder writes them, or left out.
_AS_TAUGHT: Final = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    "lenient": True,
}
_NAME: Final = re.compile(r'[^"<>\n]+')  # what an attribute can hold
_MOST_NAMES: Final = 64  # the grammar counts them in the bits of a word
_TERMINALS: Final = 'TEXT: /(?s:.*)<\\//\nNAME: /[^"<>\\n]{1,64}/\n'


def block_rules(
    tools: Sequence[Mapping[str, Any]],
    marker: int,
    many: bool,
    held: Callable[[dict[str, Any]], bool] = lambda _: True,
) -> str:
    """Rules of which `calls` is a block after its opening tag.  marker: DSML's token.  many: several calls may stand
    in it.  held: whether JSON is held to this schema; else it is any JSON.

    OptionError if there is nothing to call.
    """
    mark = f"<[{marker}]>"
    callable_tools = [tool for tool in tools if _spelled(tool["name"])]
    if not callable_tools:
        raise OptionError('tools: no name can be written in a call: expected no ", <, > or line feed')
    names = [f"tool_{number}" for number in range(len(callable_tools))]
    lines = [
        f'calls: call{"+" if many else ""} "</" {mark} "tool_calls>"',
        f'call: "<" {mark} ({" | ".join(names)})',
    ]
    for name, tool in zip(names, callable_tools, strict=True):
        opening = _text(f'invoke name="{tool["name"]}">\n')
        lines.append(f'{name}: {opening} {name}_arguments "</" {mark} "invoke>\\n"')
        schema = tool.get("parameters")
        lines += _arguments(name, parameters(schema), schema, mark, held)
    return "\n".join(lines) + "\n" + _TERMINALS


def json_rule(schema: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """What a rule is that means JSON of this schema."""
    return "%json " + json.dumps({**schema, "x-guidance": options})


def parameter_json(schema: Mapping[str, Any]) -> str:
    """The same, as it is written in a parameter."""
    return json_rule(schema, _AS_TAUGHT)


def _arguments(
    tool: str, found: Parameters, root: Any, mark: str, held: Callable[[dict[str, Any]], bool]
) -> Iterator[str]:
    def value(rule: str, schema: Any) -> Iterator[str]:
        how = forms(schema, root)
        if how.json:
            own = alone(schema, root)
            yield f"{rule}_json: {parameter_json(own if held(own) else {})}"
        yield f"{rule}: {_value(rule, how)}"

    named = {name: schema for name, schema in found.named.items() if _spelled(name)}
    if len(named) > _MOST_NAMES or (not named and found.others is not None):
        yield f'{tool}_arguments: "\\n" | {tool}_other+'
        opening = _text('parameter name="')
        yield f'{tool}_other: "<" {mark} {opening} NAME "\\"" {tool}_value {mark} "parameter>\\n"'
        yield from value(f"{tool}_value", found.others)
        return
    # Those that are required have the lowest bits.
    order = sorted(named, key=lambda name: name not in found.required)
    required = len(found.required & named.keys())
    choices = ([] if required else ['"\\n"']) + ([f"{tool}_more::0x0"] if named else [])
    yield f"{tool}_arguments: {' | '.join(choices)}"
    if not named:
        return
    done = f"is_ones([0:{required}])" if required else "ge(_, 1)"
    parts = [f'"" %if {done}']
    for bit, name in enumerate(order):
        opening, rule = _text(f'parameter name="{name}"'), f"{tool}_value_{bit}"
        rest = f'{rule} {mark} "parameter>\\n" {tool}_more::set_bit({bit}) %if bit_clear({bit})'
        parts.append(f'"<" {mark} {opening} {rest}')
    yield f"{tool}_more::_: " + "\n  | ".join(parts)
    for bit, name in enumerate(order):
        yield from value(f"{tool}_value_{bit}", named[name])


def _value(rule: str, how: Forms) -> str:
    """From the name's end to the marker in the closing tag."""
    texts = [_text(f"{text}</") for text in how.texts] + (["TEXT"] if how.text else [])
    written = [f'" string=\\"true\\">" ({" | ".join(texts)})'] if texts else []
    written += [f'" string=\\"false\\">" {rule}_json "</"'] if how.json else []
    return " | ".join(written) or '" string=\\"true\\">" TEXT'  # nothing fits: it says nothing


def _spelled(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name.isprintable()


def _text(text: str) -> str:
    return json.dumps(text)
