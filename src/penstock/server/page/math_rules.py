r"""Where formulas are in a Markdown text: `$x$`, `$$x$$`, `\(x\)` and `\[x\]`, as rules of markdown-it.

Whatever is not closed stays text, and is looked at once: the plugins for this look again from every dollar sign.
"""

from typing import Final

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

INLINE: Final = "formula"
BLOCK: Final = "formula_block"
CLOSING: Final = {"$$": "$$", "\\[": "\\]", "\\(": "\\)", "$": "$"}  # the longer one first
DISPLAYED: Final = ("$$", "\\[")
LINES: Final = 64  # of a formula, at most


def math_rules(markdown: MarkdownIt) -> None:
    markdown.inline.ruler.before("escape", INLINE, _inline)
    ended = ["paragraph", "reference", "blockquote", "list"]  # by a formula that begins on the next line
    markdown.block.ruler.before("fence", BLOCK, _block, {"alt": ended})


def _opening(text: str, begin: int) -> str | None:
    return next((mark for mark in CLOSING if text.startswith(mark, begin)), None)


def _inline(state: StateInline, silent: bool) -> bool:
    mark = _opening(state.src, state.pos)
    if mark is None:
        return False
    begin = state.pos + len(mark)
    end = _end(state, mark, begin)
    if end < 0 or (mark == "$" and not _is_formula(state.src, begin, end)):
        return False
    if not silent:
        token = state.push(INLINE, "math", 0)
        token.content = state.src[begin:end].strip()
        token.meta["displayed"] = mark in DISPLAYED
    state.pos = end + len(CLOSING[mark])
    return True


def _end(state: StateInline, mark: str, begin: int) -> int:
    """Where the formula ends, or -1.  That there is no end is remembered."""
    missing = state.env.setdefault("missing", {})
    key = (state.src, mark)
    if begin >= missing.get(key, begin + 1):
        return -1
    end = state.src.find(CLOSING[mark], begin, state.posMax)
    while mark[0] == "$" and end > 0 and state.src[end - 1] == "\\":  # a dollar of its own
        end = state.src.find(CLOSING[mark], end + 1, state.posMax)
    if end < 0 and state.posMax == len(state.src):  # else only the text of a link has been looked at
        missing[key] = begin
    return end if end > begin else -1


def _is_formula(text: str, begin: int, end: int) -> bool:
    """Between single dollars no blank may stand at the ends, and no digit after them: `$5 or $6` is money."""
    return not (text[begin].isspace() or text[end - 1].isspace() or text[end + 1 : end + 2].isdigit())


def _block(state: StateBlock, first: int, last: int, silent: bool) -> bool:
    """A formula on lines of its own; a blank line ends the search, as it ends a paragraph."""
    begin = state.bMarks[first] + state.tShift[first]
    mark = _opening(state.src, begin)
    if mark not in DISPLAYED or state.is_code_block(first):
        return False
    lines: list[str] = []
    for line in range(first, min(last, first + LINES)):
        start = state.bMarks[line] + state.tShift[line]
        if (line > first and state.sCount[line] < state.blkIndent) or start >= state.eMarks[line]:
            return False
        lines.append(state.src[start : state.eMarks[line]].rstrip())
        head = len(mark) if line == first else 0
        if lines[-1].endswith(CLOSING[mark]) and len(lines[-1]) >= head + len(CLOSING[mark]):
            break
    else:
        return False
    content = "\n".join(lines)[len(mark) : -len(CLOSING[mark])]
    if CLOSING[mark] in content:  # there is more than one formula in these lines
        return False
    if not silent:
        token = state.push(BLOCK, "math", 0)
        token.content, token.map, token.block = content.strip(), [first, first + len(lines)], True
    state.line = first + len(lines)
    return True
