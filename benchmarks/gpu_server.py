"""One stream through the server, HTTP and all, beside `Engine.generate` in a process of its own."""

import statistics
from pathlib import Path

from benchmarks.serve_cases import prompts
from benchmarks.serve_client import Ask, Lane, play
from benchmarks.served import Served
from penstock.errors import OptionError

SKIPPED = 16  # tokens, until graphs are recorded


def served(path: Path, device: str, context: int, length: int, tokens: int) -> float:
    """Seconds from one token to the next as a client hears them, after a prompt of so many tokens."""
    arguments = ["-m", str(path), "--device", device, "--context", str(context), "--draft", "off"]
    with Served(*arguments) as server:
        found = []
        for prompt in prompts(3, length):
            body = {"prompt": prompt, "max_tokens": tokens, "temperature": 1, "seed": 1, "ignore_eos": True}
            (heard,) = play(server.url, [Lane([Ask("/v1/completions", body)])])
            if heard.error or len(heard.times) < 2:
                raise OptionError(f"an answer failed: {heard.error}")
            # Not every token makes text, so their number is the answer's and not that of the events.
            share = len(heard.times) / heard.tokens
            late = heard.times[SKIPPED:]
            found.append((late[-1] - late[0]) / (len(late) - 1) * share)
        server.end()
    return statistics.median(found)
