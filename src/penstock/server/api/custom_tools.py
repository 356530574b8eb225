"""OpenAI's custom tools: their input is any text, or text of a grammar, instead of JSON.

The model knows functions with parameters alone, so a custom tool is told as a function with one, `input`; the grammar
holds what is written there (`Conversation.grammars`), and its text is told as well.
"""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from penstock.chat.messages import TextGrammar
from penstock.server.api.shared import Body, Json

INPUT: Final = "input"


class AnyText(Body):
    type: Literal["text"]


class GrammarSource(Body):
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1)]


class GrammarFormat(GrammarSource):
    """As Responses writes it: flat."""

    type: Literal["grammar"]


class WrappedGrammar(Body):
    """As chat completions writes it."""

    type: Literal["grammar"]
    grammar: GrammarSource


def as_function(name: str, description: str | None, grammar: TextGrammar | None) -> Json:
    """What the model is told of a custom tool."""
    told: Json = {"type": "string"}
    if grammar is not None:
        kind = "Lark grammar" if grammar.syntax == "lark" else "regular expression"
        told["description"] = f"Text that this {kind} describes:\n{grammar.definition}"
    described = {} if description is None else {"description": description}
    schema = {"type": "object", "properties": {INPUT: told}, "required": [INPUT]}
    return {"name": name, **described, "parameters": schema}


def grammar_of(form: AnyText | GrammarFormat | WrappedGrammar | None) -> TextGrammar | None:
    match form:
        case WrappedGrammar(grammar=source):
            return TextGrammar(source.syntax, source.definition)
        case GrammarFormat():
            return TextGrammar(form.syntax, form.definition)
        case _:
            return None


def as_arguments(text: str) -> str:
    """A call's input, as the arguments of the function that stands for the tool."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def as_input(arguments: str) -> str:
    """
    >>> as_input(as_arguments("ls -l")), as_input("not JSON")
    ('ls -l', 'not JSON')
    """
    try:
        parsed: Any = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    found = parsed.get(INPUT) if isinstance(parsed, dict) else None
    return found if isinstance(found, str) else arguments
