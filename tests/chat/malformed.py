"""Malformed turns, by the name that docs/chat.md's table of peers has for them, and what is to come of each."""

from dataclasses import dataclass, field
from typing import Any, Final

from tests.chat.reading import D

PARAMETER: Final = f'<{D}parameter name="a" string="true">q</{D}parameter>'
INVOKE: Final = f'<{D}invoke name="f">\n{PARAMETER}\n</{D}invoke>\n'
OPEN, CLOSE = f"<{D}tool_calls>", f"</{D}tool_calls>"
GOOD: Final = f"\n\n{OPEN}\n{INVOKE}{CLOSE}"
Q: Final = {"a": "q"}


@dataclass(frozen=True)
class Form:
    """What the model writes, and what a client gets: arguments of calls, answer, reasoning.  `kept`: the block itself
    is spelled as taught, and is repeated to the model as it is."""

    text: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    thinking: bool = False
    reason: str = "stop"
    kept: bool = False

    @property
    def verdict(self) -> str:
        """In the words of the table."""
        if self.calls:
            return "call, rest text" if self.content else "call"
        if self.reasoning:
            return "reasoning, text" if self.content else "reasoning"
        return "text" if self.content else "nothing"


def quoted(text: str) -> Form:
    """All of it is text."""
    return Form(text, content=text.lstrip("\n"))


def thought(text: str, reasoning: str, content: str = "") -> Form:
    return Form(text, [], content, reasoning, thinking=True)


def value(text: str) -> Form:
    """A value that is this text."""
    return Form(GOOD.replace(">q<", f">{text}<"), [{"a": text}], kept=True)


NAMELESS: Final = GOOD.replace(' name="f"', "")
NESTED: Final = f'<{D}parameter name="o">{PARAMETER}</{D}parameter>'

FORMS: Final[dict[str, Form]] = {
    # ── spelling ──
    "first bar lost: `<DSML｜tool_calls>`": Form(GOOD.replace(D, D[1:]), [Q]),
    "first bar lost in one tag": Form(GOOD.replace(f"</{D}p", f"</{D[1:]}p"), [Q]),
    "marker lost: `<tool_calls>`": quoted(GOOD.replace(D, "")),
    "block named `function_calls`": Form(GOOD.replace("tool_calls", "function_calls"), [Q]),
    "`'` around names": Form(GOOD.replace('"', "'"), [Q]),
    "`“ ”` around names": Form(GOOD.replace('"f"', "“f”"), [Q]),
    "names without quotes": Form(GOOD.replace('"f"', "f"), [Q]),
    "`string` before `name`": Form(GOOD.replace('name="a" string="true"', 'string="true" name="a"'), [Q]),
    "`string` missing, text": Form(GOOD.replace(' string="true"', ""), [Q]),
    "`string` missing, JSON": Form(GOOD.replace(' string="true">q', ">[1]"), [{"a": [1]}]),
    '`string="false"`, not JSON': Form(GOOD.replace('"true">q', '"false">007'), [{"a": "007"}]),
    'call closed at once: `<… name="f"/>`': Form(f'{OPEN}\n<{D}invoke name="f"/>\n{INVOKE}{CLOSE}', [{}, Q]),
    "parameter closed at once": Form(
        GOOD.replace(">q<", "/><").replace(f"/></{D}parameter>", "/>"), [{"a": ""}]
    ),
    # ── structure ──
    "no block around the call": Form(f"\n\n{INVOKE}", [Q]),
    "block opened twice": Form(f"{OPEN}\n{OPEN}{INVOKE}{CLOSE}", [Q]),
    "block not closed": Form(GOOD.replace(CLOSE, ""), [Q]),
    "call not closed": Form(GOOD.replace(f"</{D}invoke>\n", ""), [Q]),
    "call closed twice": Form(
        GOOD.replace(f"</{D}invoke>", f"</{D}invoke></{D}invoke>"), [Q], f"</{D}invoke>"
    ),
    "parameter not closed": Form(GOOD.replace(f"</{D}parameter>", ""), [{"a": "q\n"}]),
    "parameter closed by another name": Form(GOOD.replace(f"</{D}parameter>", f"</{D}value>"), [Q]),
    "call inside a call": Form(f'{OPEN}<{D}invoke name="g">{INVOKE}{CLOSE}', [{}, Q]),
    "parameter inside a parameter": Form(
        GOOD.replace(PARAMETER, NESTED),
        [{"o": PARAMETER.removesuffix(f"</{D}parameter>")}],
        f"</{D}parameter>",
    ),
    "the same parameter twice": Form(
        GOOD.replace(PARAMETER, PARAMETER + PARAMETER.replace("q", "z")), [Q], PARAMETER.replace("q", "z")
    ),
    "parameter outside a call": Form(f"{OPEN}{PARAMETER}{INVOKE}{CLOSE}", [Q], f"{OPEN}{PARAMETER}"),
    "call without a name": quoted(NAMELESS),
    "unknown tag in a call": Form(GOOD.replace(PARAMETER, f"<{D}note>{PARAMETER}"), [Q], f"<{D}note>"),
    "text between calls": Form(GOOD.replace(INVOKE, f"{INVOKE}so {INVOKE}"), [Q, Q], "\nso "),
    "block without a call": quoted(f"a{OPEN}\n{CLOSE}c"),
    "text after the block": Form(f"{GOOD}\nDone.", [Q], kept=True),
    "second block": Form(f"{GOOD}\n{GOOD}", [Q], kept=True),
    "JSON in place of parameters": Form(
        f'{OPEN}<{D}invoke name="f">\n{{"city": "Beijing", "to": "<b>"}}\n</{D}invoke>{CLOSE}',
        [{"city": "Beijing", "to": "<b>"}],
    ),
    "all arguments in one parameter `arguments`": Form(
        GOOD.replace('"a" string="true">q', '"arguments" string="false">{"a": "q"}'),
        [{"arguments": Q}],
        kept=True,
    ),
    "prose in place of parameters": quoted(f'{OPEN}<{D}invoke name="f">calls f</{D}invoke>{CLOSE}'),
    "prose in the second call": Form(
        f'{INVOKE}<{D}invoke name="g">as said</{D}invoke>\n',
        [Q],
        f'<{D}invoke name="g">as said</{D}invoke>',
    ),
    "cut by the limit in a value": Form(GOOD[: GOOD.index("q<") + 1], reason="length"),
    "cut by the limit in the second call": Form(
        GOOD.replace(CLOSE, INVOKE.replace('"f"', '"g"')[:60]), [Q], reason="length"
    ),
    # ── values ──
    "value with the block's closing tag": value(f"end with {CLOSE} please"),
    "value with a call's closing tag": value(f"end with </{D}invoke> please"),
    "value with `</think>`": value("a</think>b"),
    "value with blanks at its ends": value(" q\n"),
    "value with `&lt;`": value("a &lt;b&gt; &amp;"),
    # ── quoted ──
    "block in a fence": quoted(f"So:\n```xml{GOOD}\n```\nlike this."),
    "block in a fence in a list": quoted(f"1. So:\n\n    ```xml{GOOD}\n    ```\n\nlike this."),
    "block in a fence that is never closed": quoted(f"~~~~{GOOD}\n~~~\n{GOOD}"),
    "block indented by four": quoted("So:\n\n    " + GOOD.strip().replace("\n", "\n    ")),
    "opening tag in a line of code": quoted(f"use `{OPEN}` for calls"),
    "call in double backticks": quoted(f"use ``{INVOKE.strip().replace(chr(10), '')}`` for calls"),
    "prose after the opening tag": quoted(f"open {OPEN} and go on"),
    # ── reasoning ──
    "block while reasoning, and the turn ends": Form(
        f"hm{GOOD}", [Q], reasoning="hm", thinking=True, kept=True
    ),
    "block while reasoning, and more reasoning": thought(f"so{GOOD}\nbut no.", f"so{GOOD}\nbut no."),
    "block, then `</think>`": thought(f"so{GOOD}</think>ok", f"so{GOOD}", "ok"),
    "opening tag, then `</think>`": thought(f"format is {OPEN}</think>ok", f"format is {OPEN}", "ok"),
    "`</think>` never comes": thought("hm", "hm"),
    "`<think>` again": thought("<think>hm</think>ok", "hm", "ok"),
    "`<think>` with thinking off": Form("<think>hm</think>ok", content="ok", reasoning="hm"),
    "`</think>` twice": thought("hm</think>a</think>b", "hm", "ab"),
    "`</think>` in code of the answer": thought("hm</think>`</think>` ends", "hm", "`</think>` ends"),
}
