"""What a client says before it asks anything: how long that is, how long reading it takes, and how to make it say it.

A system prompt and descriptions of tools come before the first question.  Most clients put the folder there, some the
day, so what is read ahead counts for one folder, and with some for one day.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.clients.target import Target

QUESTION: Final = "Answer with one word: ready?"
SOON_S: Final = 10.0  # a wait that is not worth a word


@dataclass(frozen=True, slots=True)
class FirstPrompt:
    """How a client can be made to ask, and what it sends before the question.

    open     arguments with which it asks as soon as it is open; none: it cannot
    once     arguments with which it asks without a screen; none: it cannot
    tokens   of DeepSeek's vocabulary, from its screen, with nothing of the user's own; 0: not known
    version  which was counted
    """

    open: tuple[str, ...] = ()
    once: tuple[str, ...] = ()
    tokens: int = 0
    version: str = ""


COUNTED: Final = "November 2026"
FIRST_PROMPTS: Final = {
    "opencode": FirstPrompt(("--prompt", QUESTION), ("run", QUESTION), 5_347, "1.18.33"),
    "codex": FirstPrompt((QUESTION,), ("exec", "--skip-git-repo-check", QUESTION), 6_833, "0.166.0"),
    "claude": FirstPrompt((QUESTION,), ("-p", QUESTION), 12_237, "2.1.325"),
    "pi": FirstPrompt((QUESTION,), ("-p", QUESTION), 1_456, "0.73.1"),
    "aider": FirstPrompt((), ("--message", QUESTION)),
    "open-webui": FirstPrompt(
        tokens=6_455, version="0.12.4"
    ),  # its tools; asks only what people ask on its page
    "continue": FirstPrompt((QUESTION,), ("-p", QUESTION), 1_493, "1.5.47"),
}


def label(client: str, folder: Path) -> str:
    """Under which a server keeps a client's prompt: it knows the folder by a number alone.

    >>> label("claude", Path("/home/me/project"))
    'claude-225df3094012'
    """
    return f"{client}-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]}"


def forecast(client: str, target: Target, folder: Path) -> str:
    """How long the first question will wait for an answer, and what can be done about it; empty where it hardly
    will wait."""
    kept = target.pinned.get(label(client, folder), 0)
    if kept:
        return f"{kept:,} tokens that {client} begins with here are kept: the first answer comes at once"
    wait = expected_wait(client, target)
    ahead = f"; `penstock warm {client}` reads them ahead and keeps them"
    return wait + ahead if wait and FIRST_PROMPTS[client].once else wait


def expected_wait(client: str, target: Target) -> str:
    """How long the server will read what the client begins with, as far as that is known."""
    first, pace, whose = FIRST_PROMPTS[client], target.prefill, "at which this server reads"
    if not target.reached:
        return ""
    if not first.tokens:
        return f"how many tokens {client} begins with shows when it does"
    measured = f"{first.version}, counted in {COUNTED}; more with tools and instructions of your own"
    size = f"{client} begins with about {first.tokens:,} tokens ({measured})"
    if pace is None and target.served is not None:
        from penstock.clients.expected_pace import expected_pace  # the engine, which -h has no use for

        pace, whose = expected_pace(target.served), "that `penstock plan` expects here"
    if pace is None:
        return f"{size}; how fast this server reads shows with its first prompt, `penstock plan` estimates it"
    seconds = first.tokens / pace
    at = f"{pace:,.0f}" if pace >= 10 else f"{pace:.1f}"
    return f"{size}: {duration(seconds)} at the {at} tokens/s {whose}" if seconds > SOON_S else ""


def duration(seconds: float) -> str:
    """For a person.

    >>> duration(42), duration(130), duration(5400)
    ('42 s', '2 minutes', '1.5 hours')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
