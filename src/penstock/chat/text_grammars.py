"""Grammars of texts, as the compiler reads them: JSON of a schema, llama.cpp's GBNF, Lark, regular expressions."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from penstock.chat.messages import TextGrammar
from penstock.chat.schema_numbers import with_exact_numbers
from penstock.engine.constraint import GrammarError

# A space, or a new line with its indentation, wherever JSON may have blanks: a model cannot lose itself in them.
BOUNDED_BLANKS: Final = {"whitespace_pattern": r"(\x20|\r?\n[\x20\x09]{0,40})", "lenient": True}


def grammar_text(start: str, rules: str) -> str:
    """no_forcing: tokens are the model's choice also where the text is not."""
    return f'%llguidance {{"no_forcing": true}}\nstart: {start}\n{rules}\n'


def json_rule(schema: Mapping[str, Any], options: Mapping[str, Any] = BOUNDED_BLANKS) -> str:
    """What a rule is that means JSON of this schema; GrammarError if a number in it cannot be kept."""
    return "%json " + json.dumps({**with_exact_numbers(schema), "x-guidance": options})


def json_grammar(schema: Mapping[str, Any]) -> str:
    """JSON of this schema and nothing else."""
    return grammar_text("answer", f"answer: {json_rule(schema)}")


def gbnf_grammar(text: str) -> str:
    """A grammar in llama.cpp's own notation."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        rules: str = gbnf_to_lark(text)
    except Exception as error:  # it has several of its own, and raises plain ones too
        raise GrammarError(" ".join(str(error).split())[:300]) from None
    return rules.replace("%llguidance {}", '%llguidance {"no_forcing": true}', 1)


def text_before_tag(rule: str, grammar: TextGrammar) -> list[str]:
    """Rules of which `rule` is a text of this grammar and the beginning of a closing tag after it."""
    if grammar.syntax == "regex":  # one terminal with what ends it: a greedy one would take that for its own
        terminal = rule.upper()
        return [f"{rule}: {terminal}", f"{terminal}: /(?:{_regex(grammar.definition)})<\\//"]
    return [f'{rule}: {rule}_lark "</"', f"{rule}_lark: %lark {{\n{grammar.definition}\n}}"]


def _regex(definition: str) -> str:
    """A regular expression, as it is written between slashes."""
    slashed = re.sub(r"\\.|/", lambda found: "\\/" if found[0] == "/" else found[0], definition, flags=re.S)
    return slashed.replace("\n", "\\n")
