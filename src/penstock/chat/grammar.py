"""Which form an answer must have: JSON where a client asks for it, and tool calls that are spelled right.

With tools on offer the model is free until it opens a block of calls; from there on it can only write one that can be
read.  A call that is demanded, and JSON after the reasoning, leave it no other way.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.chat.dsml_grammar import block_rules, json_rule, parameter_json
from penstock.chat.dsml_tags import CLOSING_MARK, LOST_BAR
from penstock.chat.markers import DSML, END_THINK, marker_id
from penstock.chat.messages import Conversation
from penstock.chat.tool_text import BEFORE_BLOCK, OPEN_BLOCK
from penstock.engine.constraint import Constraint, Constraints, Grammar, GrammarError, Rules
from penstock.errors import OptionError

# A space, or a new line with its indentation, wherever JSON may have blanks: a model cannot lose itself in them.
_JSON: Final = {"whitespace_pattern": r"(\x20|\r?\n[\x20\x09]{0,40})", "lenient": True}
_ANY_OBJECT: Final = {"type": "object"}

# The parser knows markers also by their text.  Only the marker itself may open or close something.
_OPENINGS: Final = tuple(f"<{mark}".encode() for mark in (DSML, LOST_BAR))
_CLOSINGS: Final = (CLOSING_MARK.encode(), f"</{LOST_BAR}".encode())
_END_THINK: Final = (END_THINK.encode(),)
_BEGIN_BLOCK: Final = OPEN_BLOCK.removeprefix(f"<{DSML}")


def is_held(conversation: Conversation) -> bool:
    """Whether the next turn has a form at all."""
    return bool(conversation.tools) or _form(conversation) is not None


def hold(
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
    return None if rules is None else constraints.hold(rules)


def _rules(
    constraints: Constraints, conversation: Conversation, thinking: bool, force_call: bool, begun: str
) -> Rules | None:
    tokenizer, tools, form = constraints.tokenizer, conversation.tools, _form(conversation)
    never: tuple[bytes, ...] = ()
    triggers, gates, calls = {}, {}, ""
    if tools:
        marker = marker_id(tokenizer, DSML)
        calls = _calls(constraints, tools, marker, conversation.parallel_calls, force_call)
        if force_call:
            return Rules(start=Grammar(_grammar("calls", calls), _CLOSINGS))
        opening = f"{_quoted(_BEGIN_BLOCK)} calls"
        triggers[marker] = Grammar(_grammar(opening, calls), _CLOSINGS)
        gates[marker], never = b"<", _OPENINGS
    if form is None:
        return Rules(triggers=triggers, gates=gates, never=never, begun=begun) if tools else None
    rule = json_rule(form, _JSON)
    try:
        constraints.matcher(_grammar("answer", f"answer: {rule}"))
    except GrammarError as error:
        raise OptionError(f"{conversation.schema_field}: {error}") from error
    start = f"answer | {_quoted(BEFORE_BLOCK + '<')} <[{marker}]> {opening}" if tools else "answer"
    answer = Grammar(_grammar(start, f"answer: {rule}\n{calls}"), _CLOSINGS if tools else ())
    if not thinking:
        return Rules(start=answer, begun=begun)
    triggers[marker_id(tokenizer, END_THINK)] = answer
    return Rules(triggers=triggers, gates=gates, may_end=False, never=(*never, *_END_THINK), begun=begun)


def _form(conversation: Conversation) -> Mapping[str, Any] | None:
    """The schema that the answer is held to."""
    return _ANY_OBJECT if conversation.json_only else conversation.response_schema


def _calls(
    constraints: Constraints, tools: Sequence[Mapping[str, Any]], marker: int, many: bool, forced: bool
) -> str:
    """Rules for `calls`.  A schema that cannot be used is an error where a call is demanded; else less is held."""
    tools = [tool.get("function", tool) for tool in tools]

    def fault(rules: str, start: str = "calls") -> GrammarError | None:
        try:
            constraints.matcher(_grammar(start, rules))
        except GrammarError as error:
            return error
        return None

    rules = block_rules(tools, marker, many)
    if (error := fault(rules)) is None:
        return rules
    if forced:
        for tool in tools:
            if why := fault(block_rules([tool], marker, many)):
                raise OptionError(f"tools: the parameters of {tool['name']!r}: {why}")
        raise OptionError(f"tools: {error}")
    rules = block_rules(
        tools, marker, many, lambda schema: fault(f"answer: {parameter_json(schema)}", "answer") is None
    )
    if fault(rules) is None:
        return rules
    return block_rules([{"name": tool["name"], "parameters": {}} for tool in tools], marker, many)


def _grammar(start: str, rules: str) -> str:
    """no_forcing: tokens are the model's choice also where the text is not."""
    return f'%llguidance {{"no_forcing": true}}\nstart: {start}\n{rules}\n'


def _quoted(text: str) -> str:
    """As the grammar spells a text."""
    return '"' + text.replace("\n", "\\n") + '"'
