"""Which form an answer must have: JSON where a client asks for it, and tool calls that are spelled right.

With tools on offer the model is free until it opens a block of calls, at the beginning of a line of its answer.  From
there on it can only write one that can be read.  While it reasons the marker is talk of the format, and free; within
a line of the answer it would be half a call that a client sees, and may not come.  A call that is demanded, and JSON
after the reasoning, leave no other way; where no tool may be called, the marker may not come at all.

In a block of calls, spelled as the model was taught to (`tools`), parameters may come in any order, each at most
once, the required ones always.  A string is raw text; it ends at `</` before the marker, so it may have any tags and
lines of its own.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from penstock.chat.deepseek_v4.markers import DSML, END_THINK
from penstock.chat.deepseek_v4.tags import CLOSING_MARK, LOST_BAR
from penstock.chat.deepseek_v4.tools import BEFORE_BLOCK, OPEN_BLOCK
from penstock.chat.json_schema import Forms, Parameters, alone, forms, parameters
from penstock.chat.messages import Conversation, TextGrammar
from penstock.chat.prompt import marker_id
from penstock.chat.text_grammars import grammar_text, json_rule, text_before_tag
from penstock.engine.constraint import Constraint, Constraints, Grammar, GrammarError, Rules
from penstock.errors import OptionError

_ANY_OBJECT: Final = {"type": "object"}

# The parser knows markers also by their text.  Only the marker itself may open or close something.
_OPENINGS: Final = tuple(f"<{mark}".encode() for mark in (DSML, LOST_BAR))
_CLOSINGS: Final = (CLOSING_MARK.encode(), f"</{LOST_BAR}".encode())
_END_THINK: Final = (END_THINK.encode(),)
_MARKER_PLACES: Final = (b"<", b"</")
_CALL_PLACE: Final = re.compile(rb"(?s:.*\n)? {0,3}<")  # of the text since the turn, or the answer, began
_BEGIN_BLOCK: Final = OPEN_BLOCK.removeprefix(f"<{DSML}")

# How JSON is written in a parameter; no options of the client's own.  Spaces are as DeepSeek's encoder writes them,
# or left out.
_AS_TAUGHT: Final = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    "lenient": True,
}
_NAME: Final = re.compile(r'[^"<>\n]+')  # what an attribute can hold
_MOST_NAMES: Final = 64  # the grammar counts them in the bits of a word
_TERMINALS: Final = 'TEXT: /(?s:.*)<\\//\nNAME: /[^"<>\\n]{1,64}/\n'


def turn_constraint(
    constraints: Constraints,
    conversation: Conversation,
    *,
    thinking: bool,
    force_call: bool = False,
    begun: str = "",
) -> Constraint | None:
    """What holds the next turn to its form; None if it is free.

    thinking    the prompt ends inside reasoning (`Prompt.thinking`)
    force_call  the prompt ends with `forced_call_prefix`
    begun       what the turn begins with already

    OptionError that names the field if a schema cannot be used.
    """
    try:
        rules = _rules(constraints, conversation, thinking, force_call, begun)
    except RecursionError:
        raise OptionError("the schemas of tools and answer: nested too deeply") from None
    return None if rules is None else constraints.constrain(rules)


def _rules(
    constraints: Constraints, conversation: Conversation, thinking: bool, force_call: bool, begun: str
) -> Rules | None:
    tokenizer, tools, form = constraints.tokenizer, conversation.functions, _form(conversation)
    never: tuple[bytes, ...] = ()
    triggers, gates, calls = {}, {}, ""
    after = marker_id(tokenizer, END_THINK) if thinking else None
    if conversation.all_tools:
        marker = marker_id(tokenizer, DSML)
        gates[marker], never = (_MARKER_PLACES if tools else ()), _OPENINGS
    if tools:
        calls = _calls(constraints, conversation, marker, force_call)
        if force_call:
            return Rules(start=Grammar(grammar_text("calls", calls), _CLOSINGS))
        opening = f"{_text(_BEGIN_BLOCK)} calls"
        triggers[marker] = Grammar(grammar_text(opening, calls), _CLOSINGS)
    free = Rules(triggers=triggers, where=_CALL_PLACE, after=after, gates=gates, never=never, begun=begun)
    if form is None:
        return free if conversation.all_tools else None
    try:
        rule = json_rule(form)
        constraints.matcher(grammar_text("answer", f"answer: {rule}"))
    except GrammarError as error:
        raise OptionError(f"{conversation.schema_field}: {error}") from error
    start = f"answer | {_text(BEFORE_BLOCK + '<')} <[{marker}]> {opening}" if tools else "answer"
    answer = Grammar(grammar_text(start, f"answer: {rule}\n{calls}"), _CLOSINGS if tools else ())
    if not thinking:
        return Rules(start=answer, begun=begun)
    held = {marker_id(tokenizer, END_THINK): answer}
    return replace(free, triggers=held, where=None, after=None, may_end=False, never=(*never, *_END_THINK))


def _form(conversation: Conversation) -> Mapping[str, Any] | None:
    """The schema that the answer is held to."""
    return _ANY_OBJECT if conversation.json_only else conversation.response_schema


def _calls(constraints: Constraints, conversation: Conversation, marker: int, forced: bool) -> str:
    """Rules for `calls`.  A schema that cannot be used is an error where a call is demanded; else less is held.  The
    grammar of a text is what its client asked for, and an error wherever it cannot be used."""
    tools, many, grammars = conversation.functions, conversation.parallel_calls, conversation.grammars

    def block(*some: Mapping[str, Any], held: Callable[[dict[str, Any]], bool] = lambda _: True) -> str:
        rules = block_rules(some, marker, many, held, grammars)
        constraints.matcher(grammar_text("calls", rules))
        return rules

    def usable(schema: dict[str, Any]) -> bool:
        try:
            constraints.matcher(grammar_text("answer", f"answer: {parameter_json(schema)}"))
        except GrammarError:
            return False
        return True

    def check(tool: Mapping[str, Any], what: str) -> None:
        try:
            block(tool)
        except GrammarError as error:
            raise OptionError(f"tools: the {what} of {tool['name']!r}: {error}") from error

    for tool in tools:
        if tool["name"] in grammars:
            check(tool, "grammar")
    try:
        return block(*tools)
    except GrammarError as error:
        if forced:
            for tool in tools:
                check(tool, "parameters")
            raise OptionError(f"tools: {error}") from error
    with suppress(GrammarError):
        return block(*tools, held=usable)
    return block_rules([{"name": tool["name"], "parameters": {}} for tool in tools], marker, many)


# ── a block of calls ──────────────────────────────────────────────────────────────────────────────────────


def block_rules(
    tools: Sequence[Mapping[str, Any]],
    marker: int,
    many: bool,
    held: Callable[[dict[str, Any]], bool] = lambda _: True,
    grammars: Mapping[str, TextGrammar] | None = None,
) -> str:
    """Rules of which `calls` is a block after its opening tag.  marker: DSML's token.  many: several calls may stand
    in it.  held: whether JSON is held to this schema; else it is any JSON.  grammars: see `Conversation`.

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
        grammar = (grammars or {}).get(tool["name"])
        if grammar is None:
            lines += _arguments(name, parameters(schema), schema, mark, held)
        else:
            lines += _one_text(name, next(iter(parameters(schema).named)), grammar, mark)
    return "\n".join(lines) + "\n" + _TERMINALS


def parameter_json(schema: Mapping[str, Any]) -> str:
    """What a rule is that means JSON of this schema, as it is written in a parameter."""
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


def _one_text(tool: str, parameter: str, grammar: TextGrammar, mark: str) -> Iterator[str]:
    """The one parameter of a tool whose text has a grammar of its own."""
    opening = _text(f'parameter name="{parameter}" string="true">')
    yield f'{tool}_arguments: "<" {mark} {opening} {tool}_text {mark} "parameter>\\n"'
    yield from text_before_tag(f"{tool}_text", grammar)


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
