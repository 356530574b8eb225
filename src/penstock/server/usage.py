"""What a request has used: tokens and time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.engine.progress import PrefillProgress

SHORTEST: Final = 0.001  # seconds of which a rate says something


@dataclass(slots=True)
class Usage:
    """Counted while a request runs."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    drafted: int = 0  # tokens that were guessed ahead
    accepted: int = 0  # and were right
    prefill: PrefillProgress | None = None  # while the prompt is read
    begun: float = field(default_factory=time.monotonic)
    first: float | None = None  # when the first token was there
    last: float | None = None  # when the last one was
    ended: float | None = None


def sign_of_life(usages: Sequence[Usage]) -> str:
    """What a client hears while there is nothing else to tell: a comment of server-sent events, without its end.

    >>> sign_of_life([Usage(prefill=PrefillProgress(1124, 3604, 100, seconds=40.0))])
    ': prefill 1124/3604 25.6 tokens/s 97 s left'
    """
    reading = next((usage.prefill for usage in usages if usage.prefill is not None), None)
    if reading is None:
        return ": generating" if any(usage.first for usage in usages) else ": waiting"
    words = f": prefill {reading.done}/{reading.total}"
    if reading.seconds_left is not None:
        words += f" {reading.rate:.1f} tokens/s {reading.seconds_left:.0f} s left"
    return words


def combined(usages: Sequence[Usage]) -> Usage:
    """Several choices for one prompt: the prompt counts once."""
    firsts = [usage.first for usage in usages if usage.first is not None]
    lasts = [usage.last for usage in usages if usage.last is not None]
    ends = [usage.ended for usage in usages if usage.ended is not None]
    return replace(
        usages[0],
        cached=max(usage.cached for usage in usages),
        completion=sum(usage.completion for usage in usages),
        reasoning=sum(usage.reasoning for usage in usages),
        drafted=sum(usage.drafted for usage in usages),
        accepted=sum(usage.accepted for usage in usages),
        begun=min(usage.begun for usage in usages),
        first=min(firsts, default=None),
        last=max(lasts, default=None),
        ended=max(ends, default=None),
    )


def timings(usage: Usage) -> dict[str, Any]:
    """In llama.cpp's terms.  Time in the queue counts as prefill; the decode rate counts the tokens after the first,
    which comes with the prompt."""
    first = usage.first or usage.ended or time.monotonic()
    read = usage.prompt - usage.cached
    prefill, decode = first - usage.begun, (usage.last or first) - first
    after = max(usage.completion - 1, 0)
    drafts = {"draft_n": usage.drafted, "draft_n_accepted": usage.accepted} if usage.drafted else {}
    return {
        "cache_n": usage.cached,
        "prompt_n": read,
        "prompt_ms": round(1000 * prefill, 3),
        "prompt_per_token_ms": _each(prefill, read),
        "prompt_per_second": _rate(read, prefill),
        "predicted_n": usage.completion,
        "predicted_ms": round(1000 * decode, 3),
        "predicted_per_token_ms": _each(decode, after),
        "predicted_per_second": _rate(after, decode),
        **drafts,
    }


def _rate(tokens: int, seconds: float) -> float:
    """Tokens a second; 0 where too little was measured to tell.

    >>> _rate(100, 2.0), _rate(2, 0.0001)
    (50.0, 0.0)
    """
    return round(tokens / seconds, 3) if seconds >= SHORTEST else 0.0


def _each(seconds: float, tokens: int) -> float:
    return round(1000 * seconds / tokens, 3) if tokens else 0.0
