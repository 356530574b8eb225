"""The process that renders: a line of JSON in, a line of JSON out.  Run by `renderer.py`.

Markdown, and code in it, can be written so that reading it takes minutes; regular expressions do not let go of the
interpreter meanwhile.  Here nobody waits for it: time and memory are bounded, and the server answers others.
"""

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any, Final

from penstock.server.page.cpu_limit import cpu_limit
from penstock.server.page.markdown import blocks

SECONDS: Final = 3.0  # of computing, for one text
MEMORY: Final = 96 << 20  # bytes, of which 30 are usual


def answer(line: bytes) -> Any:
    """The blocks of a text, or null if they took too much."""
    try:
        with cpu_limit(SECONDS):
            return [list(block) for block in blocks(json.loads(line))]
    except (TimeoutError, MemoryError, RecursionError):
        return None


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # meant for the server; the end of the input ends this
    os.nice(5)  # answers are worth more than their looks
    with suppress(OSError, ValueError):  # a system that has no such limit
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(answer(line), separators=(",", ":")).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
