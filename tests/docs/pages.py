"""The pages that people read, as blocks and spans of code.

A block is fenced and says its language.  A marker before it names what it needs that the suite does not have: all of
it, or the commands that begin with what follows the colon.  Nobody sees the marker but the tests.

    <!-- needs gpu -->
    <!-- needs disk: penstock synth -->
    ```sh
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(
    sorted(
        str(path.relative_to(ROOT))
        for pattern in ("README.md", "CONTRIBUTING.md", "BENCHMARKS.md", "docs/*.md", "pocket/README.md")
        for path in ROOT.glob(pattern)
    )
)
LANGUAGES: Final = ("sh", "console", "python", "pycon", "json", "toml", "yaml", "text")
# Why a command is not run in the everyday suite.  It is still held against the flags that there are.
NEEDS: Final = {
    "large model": "a published checkpoint of 80 GB and more",
    "gpu": "an NVIDIA GPU",
    "network": "PyPI or a model hub",
    "machines": "several machines",
    "npm": "programs from npm",
    "root": "an administrator",
    "certificate": "a certificate of this machine, and a file of keys",
    "disk": "many gigabytes of disk and as many minutes",
    "checkout": "the repository and its environment, which it would change",
    "minutes": "more time than the suite has: `make test-slow` runs it",
}

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARKERS: Final = re.compile(r"(?:^<!--.*-->\n)+\Z", re.MULTILINE)
_MARKER: Final = re.compile(r"^<!-- needs ([a-z ]+?)(?:: (.+?))? -->$", re.MULTILINE)
_SPAN: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK: Final = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@dataclass(frozen=True)
class Command:
    """A command of a block as it is written, comment and all, and the output that the page shows, if it shows any."""

    page: str
    line: int
    text: str
    needs: str = ""
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Block:
    """line: that of the fence.  needs: reasons, each with the beginning of the commands it is for."""

    page: str
    line: int
    language: str
    text: str
    needs: tuple[tuple[str, str], ...]

    @property
    def commands(self) -> list[Command]:
        if self.language == "console":
            return list(self._transcript())
        return list(self._script()) if self.language == "sh" else []

    def _script(self) -> Iterator[Command]:
        joined, first = "", 0
        for number, line in enumerate(self.text.splitlines(), self.line + 1):
            first = first if joined else number
            joined += line
            if line.endswith("\\"):
                joined = f"{joined[:-1].rstrip()} "
            elif joined.strip() and not joined.startswith("#"):
                yield Command(self.page, first, joined, self.need(joined))
                joined = ""
            else:
                joined = ""

    def _transcript(self) -> Iterator[Command]:
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        line = self.line + 1 + parts[0].count("\n")
        for text, output in zip(parts[1::2], parts[2::2], strict=True):
            yield Command(self.page, line, text, self.need(text), output)
            line += 1 + output.count("\n")

    def need(self, text: str = "") -> str:
        """What a command of this block needs, or the block as a whole."""
        return next((reason for reason, start in self.needs if text.startswith(start)), "")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    text, found = read(page), []
    for match in _FENCE.finditer(text):
        markers = _MARKERS.search(text[: match.start()])
        needs = tuple(_MARKER.findall(markers[0])) if markers else ()
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, match[1], match[2], needs))
    return found


def markers(page: str) -> list[str]:
    """Every comment of a page that looks like a marker, also one that is misspelt or stands in a wrong place."""
    return re.findall(r"^\s*<!--\s*needs.*?-->", read(page), re.MULTILINE)


def prose(page: str) -> str:
    """The page without its blocks."""
    return _FENCE.sub("", read(page))


def spans(page: str) -> list[str]:
    """What stands in backticks in the text, on one line."""
    return [" ".join(span.split()) for span in _SPAN.findall(prose(page))]


def links(page: str) -> list[str]:
    """Files that a page points to."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target]
