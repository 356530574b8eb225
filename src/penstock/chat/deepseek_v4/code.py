"""Whether text stands in code: a model that shows its own format in an example means no call.

Markdown's rules, as far as they decide this.  A fence is a line of three backticks or tildes, or more, and lasts
until a line of at least as many; it may stand in a list or a quotation, so what leads to it does not matter.  Within
a line, a run of backticks opens code and the next run of as many closes it.  A line that is indented by four is code
too, and a line that begins with `>` quotes.
"""

import re
from typing import Final, NamedTuple

_FENCE = re.compile(r"(?:[ \t>]|[-*+] |\d{1,9}[.)] )*(`{3,}|~{3,})(.*)")
_QUOTED = re.compile(r" {4}| {0,3}(?:\t|>)")
_TICKS = re.compile(r"`+")
_KEPT: Final = 256  # characters of a line that may tell a fence


class Code(NamedTuple):
    """Where text has come to.  A value: `after` gives the next one.

    >>> Code().after("as in ```\\nf()").open, Code().after("`a` and `").open, Code().after("```\\na\\n```\\n").open
    (False, True, False)
    """

    fence: str = ""  # what opened the block of code that this is in
    line: str = ""  # the beginning of the current line
    span: int = 0  # backticks that opened the code that is open in this line
    run: int = 0  # backticks that it ends with for now

    @property
    def open(self) -> bool:
        return bool(self.fence or self._span_now or _QUOTED.match(self.line))

    @property
    def _span_now(self) -> int:
        """`span` if no backtick follows."""
        if not self.run:
            return self.span
        return self.run if not self.span else 0 if self.span == self.run else self.span

    def after(self, text: str) -> "Code":
        *ended, last = text.split("\n")
        now = self
        for part in ended:
            now = Code(now._fence_after(now.line + part[:_KEPT]))
        return now._within_line(last)

    def _within_line(self, text: str) -> "Code":
        now, at = self, 0
        for ticks in _TICKS.finditer(text):
            if ticks.start() > at or not now.run:
                now = now._replace(span=now._span_now, run=0)
            now, at = now._replace(run=now.run + len(ticks[0])), ticks.end()
        if at < len(text):
            now = now._replace(span=now._span_now, run=0)
        return now._replace(line=(self.line + text)[:_KEPT])

    def _fence_after(self, line: str) -> str:
        found = _FENCE.fullmatch(line)
        if not found:
            return self.fence
        run, rest = found.groups()
        if not self.fence:
            return "" if run[0] == "`" and "`" in rest else run  # ```so``` is code within a line
        closes = run[0] == self.fence[0] and len(run) >= len(self.fence) and not rest.strip()
        return "" if closes else self.fence
