"""The process that renders: a line of JSON in, a line of JSON out.  Run by `renderer.py`.

Markdown, and code in it, can be written so that reading it takes minutes; regular expressions do not let go of the
interpreter meanwhile.  Here nobody waits for it: time and memory are bounded, and the server answers others.
"""

import json
import os
import resource
import sys
from typing import Any, Final

from penstock.server.page.cpu_limit import cpu_limit
from penstock.server.page.markdown import blocks

SECONDS: Final = 3.0  # of computing, for one text
MEMORY: Final = 512 << 20  # bytes of addresses; 40 MiB is usual


def answer(line: bytes) -> Any:
    """The blocks of a text, or null if they took too much."""
    try:
        with cpu_limit(SECONDS):
            return [list(block) for block in blocks(json.loads(line))]
    except (TimeoutError, MemoryError, RecursionError):
        return None


def main() -> None:
    os.nice(5)  # answers are worth more than their looks
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(answer(line), separators=(",", ":")).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
