"""Whether text stands in code: a model that shows its own format in an example means no call.

Markdown's rules, as far as they decide this: a fence is a line that begins with three backticks or tildes, or more,
and lasts until a line of at least as many; within a line, an odd number of backticks leaves code open.
"""

import re
from typing import Final, NamedTuple

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_KEPT: Final = 256  # characters of a line that may tell a fence


class Code(NamedTuple):
    """Where text has come to.  A value: `after` gives the next one.

    >>> Code().after("as in ```\\nf()").open, Code().after("`a` and `").open, Code().after("```\\na\\n```\\n").open
    (False, True, False)
    """

    fence: str = ""  # what opened the block of code that this is in
    line: str = ""  # the beginning of the current line
    ticks: int = 0  # backticks in it

    @property
    def open(self) -> bool:
        return bool(self.fence) or self.ticks % 2 == 1

    def after(self, text: str) -> "Code":
        *ended, last = text.split("\n")
        now = self
        for part in ended:
            now = Code(now._fence_after(now.line + part[:_KEPT]))
        return Code(now.fence, (now.line + last)[:_KEPT], now.ticks + last.count("`"))

    def _fence_after(self, line: str) -> str:
        found = _FENCE.fullmatch(line)
        if not found:
            return self.fence
        run, rest = found.groups()
        if not self.fence:
            return "" if run[0] == "`" and "`" in rest else run  # ```so``` is code within a line
        closes = run[0] == self.fence[0] and len(run) >= len(self.fence) and not rest.strip()
        return "" if closes else self.fence
